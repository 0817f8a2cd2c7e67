"""Log lines of a node: key=value for people and grep, or JSON for machines, on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog
from structlog.typing import Processor

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(format_: str, level: str, **context: str) -> None:
    """For the whole process. `context` (node, group) goes with every line."""
    renderer: Any
    if format_ == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "event"], drop_missing=True, bool_as_flag=False
        )
    structlog.configure(
        processors=[
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
