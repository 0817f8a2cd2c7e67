"""The event trace of a run: one line per event, identical for the same seed."""

from __future__ import annotations

from collections import deque
from typing import TextIO

from dledger.core.messages import Append, Compare, PushResponse
from dledger.replica.shell import AppendOutcome, HardStateJob, TruncateJob, WriteJob
from dledger.store.format.batch import Batch

_Line = tuple[int, str, str, tuple[object, ...]]


class Trace:
    """Keeps the last events, and writes all events to `sink` if there is one.

    Formatting costs more than most steps, so without a sink only requested lines are formatted.
    """

    def __init__(self, *, keep: int = 400, sink: TextIO | None = None) -> None:
        self.count = 0
        self._last: deque[_Line] = deque(maxlen=keep)
        self._sink = sink

    def add(self, now_ms: int, node: str, what: str, *details: object) -> None:
        """Add an event. `details` must never change afterwards."""
        line = (now_ms, node, what, details)
        self.count += 1
        self._last.append(line)
        if self._sink is not None:
            self._sink.write(_format(line) + "\n")

    def close(self) -> None:
        """Stop writing, because the remaining objects of a run may add events when they are
        garbage-collected."""
        self._sink = None

    def tail(self, count: int) -> list[str]:
        """Return the last lines."""
        return [_format(line) for line in list(self._last)[-count:]]


def _format(line: _Line) -> str:
    now_ms, node, what, details = line
    return " ".join([f"{now_ms:>7}", f"{node:<3}", what, *map(describe, details)])


def describe(value: object) -> str:
    """Return a short text for a value in a trace. Bytes are not shown, only their identification."""
    match value:
        case str():
            return value
        case Batch():
            return f"{value.first_index}-{value.last_index}@{value.term}#{value.chain_crc:08x}"
        case WriteJob():
            batches = ",".join(describe(b) for b in value.batches)
            return f"write(g{value.generation} {batches})"
        case TruncateJob():
            return f"truncate(g{value.generation} after {value.last_index})"
        case HardStateJob():
            state = value.hard_state
            vote = f"term={state.term} vote={state.voted_for} inc={state.incarnation}"
            return f"hard_state(#{value.number} {vote})"
        case Append():
            return (
                f"Append(t{value.term} s{value.stream_id} {value.first_index}-{value.last_index}"
                f" prev={value.prev_index}@{value.prev_term} commit={value.committed_index})"
            )
        case Compare():
            return f"Compare(t{value.term} s{value.stream_id} {value.index}@{value.index_term})"
        case PushResponse():
            return (
                f"PushResponse(t{value.term} s{value.stream_id} {value.type.name} {value.code.name}"
                f" index={value.index} end={value.ledger_end_index}"
                f" conflict={value.conflict_index}@{value.conflict_term})"
            )
        case AppendOutcome():
            again = " duplicate" if value.duplicate else ""
            return f"stored({value.index}+{value.count}@{value.term}{again})"
        case BaseException():
            return f"{type(value).__name__}({value})"
        case _:
            return repr(value)
