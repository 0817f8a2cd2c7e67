"""Log lines of a node on stderr: key=value for people and grep, or JSON for machines."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, cast

import structlog
import structlog.stdlib
from structlog.typing import Processor

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


#: Maximum lines per kind of event in one window. The first line of the next window reports how many were
#: dropped.
MOST_LINES: Final = 200
_WINDOW_S: Final = 10.0
#: Maximum number of counted kinds. Beyond that, all counts are reset.
_MOST_KINDS: Final = 1_024


class LineLimit:
    """Limits the rate of log lines. Client errors are logged, but 10,000 lines a second would fill the disk
    or make the journal drop other lines.

    Use it as a structlog processor for the project's own lines, and as a filter for lines of libraries.
    Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._kinds: dict[object, list[float]] = {}  # kind -> start of the window, lines, dropped lines

    def __call__(self, logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Count a line. Raises structlog.DropEvent to drop it."""
        left_out = self._left_out((line.get("part"), line.get("event")))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            line["left_out"] = left_out
        return line

    def filter(self, record: logging.LogRecord) -> bool:
        """Count a record of a library. Records with the same format string are one kind."""
        left_out = self._left_out((record.name, record.msg))
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (left out: {left_out})", ()
        return left_out is not None

    def _left_out(self, kind: object) -> int | None:
        """Return how many lines of this kind were dropped before this one, or None if this one is dropped
        too."""
        now = self._now_s()
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            window = self._kinds.setdefault(kind, [now, 0, 0])
            if now - window[0] >= _WINDOW_S:
                window[:2] = now, 0
            if window[1] >= MOST_LINES:
                window[2] += 1
                return None
            window[1] += 1
            left_out, window[2] = int(window[2]), 0
            return left_out


def configure_logging(format_: str, level: str, **context: str) -> None:
    """Configure logging of the whole process. `context` (node, group) is added to every line."""
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
        # A separate file object: sys.stderr may be replaced, and a fatal line must still be written.
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries (grpc, asyncio) use logging: send their warnings to the same place.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s", force=True
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(limit)


def _adding(context: Mapping[str, str]) -> Processor:
    """Return a processor that adds `context`. It uses no contextvars, because these would be missing in other
    threads and in bare callbacks."""

    def add(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        line.update(context)
        return line

    return add


def get_logger(name: str) -> Any:
    """Return the logger of a part. Until structlog is configured, its lines are records of `logging`."""

    def bind(logger: Any, processors: Iterable[Processor], context: dict[str, Any]) -> Any:
        if structlog.is_configured():
            return structlog.get_config()["wrapper_class"](logger, processors=processors, context=context)
        own = logging.getLogger(f"dledger.{name}")
        return structlog.stdlib.BoundLogger(own, processors=_LIBRARY_PROCESSORS, context=context)

    return structlog.wrap_logger(None, wrapper_class=cast("Any", bind), part=name)


def _encodable(logger: Any, method: str, line: Any) -> str:
    """Escape characters that UTF-8 cannot encode, for example in a file name that is not valid text. Handlers
    of the program may write to files with strict encoding."""
    return str(line).encode("utf-8", "backslashreplace").decode("utf-8")


#: For programs that import this package and configure `logging` only, or nothing.
_LIBRARY_PROCESSORS: Final[Sequence[Processor]] = (
    structlog.stdlib.filter_by_level,
    structlog.processors.format_exc_info,
    structlog.processors.LogfmtRenderer(key_order=["event"], drop_missing=True, bool_as_flag=False),
    _encodable,
)


def silence_logging() -> None:
    """Silence logs in simulations, which record their findings in traces. Keeps an existing configuration."""
    if not structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
