"""What clients do wrong is in the log of a node, and does not fill it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from dledger.infra.logs import MOST_LINES, LineLimit


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _ours(limit: LineLimit, event: str, number: int) -> Any:
    """How many lines were left out before this one; None: it was left out."""
    try:
        return limit(None, "info", {"part": "remoting", "event": event, "peer": number}).get("left_out", 0)
    except structlog.DropEvent:
        return None


def _librarys(limit: LineLimit, event: str, number: int) -> Any:
    record = logging.LogRecord("grpc", logging.ERROR, "", 0, f"{event}: %s", (number,), None)
    if not limit.filter(record):
        return None
    text = record.getMessage()
    assert text.startswith(f"{event}: {number}")
    return int(text.split("left out: ")[1].rstrip(")")) if "left out" in text else 0


@pytest.mark.parametrize("say", [_ours, _librarys])
def test_lines_of_a_kind_are_limited_and_counted(say: Callable[[LineLimit, str, int], Any]) -> None:
    clock = Clock()
    limit = LineLimit(clock)
    assert [say(limit, "no frame", i) for i in range(MOST_LINES + 500)] == [0] * MOST_LINES + [None] * 500
    assert say(limit, "no leader", 1) == 0, "lines of another kind"
    clock.now_s = 9.9
    assert say(limit, "no frame", 1) is None
    clock.now_s = 10.0
    assert [say(limit, "no frame", i) for i in range(2)] == [501, 0]


def test_kinds_that_a_client_may_name_take_no_room() -> None:
    limit = LineLimit(Clock())
    for number in range(5_000):
        assert _ours(limit, f"closing {number}", number) == 0
    assert len(limit._kinds) <= 1_024
