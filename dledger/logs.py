"""Log lines of a node: key=value for people and grep, or JSON for machines, on stderr."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

import structlog
from structlog.typing import Processor

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


#: Lines about one kind of event in so many seconds; the next one after that says how many were left out.
MOST_LINES: Final = 200
_WINDOW_S: Final = 10.0
#: Kinds that are counted. When there are more, all begin anew.
_MOST_KINDS: Final = 1_024


class LineLimit:
    """How many lines there may be. What clients do wrong is worth a line, and they can do it 10,000 times a
    second: that would fill the disk, or have the journal drop lines of others.

    A structlog processor for our own lines, and a filter for those of libraries. On any thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._kinds: dict[object, list[float]] = {}  # when the window began, lines, lines that were left out

    def __call__(self, logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """structlog.DropEvent."""
        left_out = self._left_out((line.get("part"), line.get("event")))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            line["left_out"] = left_out
        return line

    def filter(self, record: logging.LogRecord) -> bool:
        """Of a kind are lines with the same text, whatever is filled in."""
        left_out = self._left_out((record.name, record.msg))
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (left out: {left_out})", ()
        return left_out is not None

    def _left_out(self, kind: object) -> int | None:
        """Of this kind before this line; None: this one is left out, too."""
        now = self._now_s()
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            found = self._kinds.setdefault(kind, [now, 0, 0])
            if now - found[0] >= _WINDOW_S:
                found[:2] = now, 0
            if found[1] >= MOST_LINES:
                found[2] += 1
                return None
            found[1] += 1
            left_out, found[2] = int(found[2]), 0
            return left_out


def configure_logging(format_: str, level: str, **context: str) -> None:
    """For the whole process. `context` (node, group) goes with every line."""
    renderer: Any
    if format_ == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "event"], drop_missing=True, bool_as_flag=False
        )
    limit = LineLimit()
    structlog.configure(
        processors=[
            limit,
            _adding(context),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks
            if format_ == "json"
            else structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        # A file of our own: sys.stderr may be replaced, and a fatal line must still come out.
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries (grpc, asyncio) speak through logging: their warnings go the same way.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s", force=True
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(limit)


def _adding(context: Mapping[str, str]) -> Processor:
    """Not contextvars: lines come from several threads, and from callbacks without a context of their own."""

    def add(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        line.update(context)
        return line

    return add


def get_logger(name: str) -> Any:
    return structlog.get_logger(part=name)


def silence_logging() -> None:
    """For simulations, whose findings are in their traces; what somebody has configured stays as it is."""
    if not structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
