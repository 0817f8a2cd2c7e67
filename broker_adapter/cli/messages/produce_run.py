"""Send the lines of a stream as messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_adapter.errors import BrokerError, IllegalMessage, PutIndeterminate, Status
from dledger.cli.line_run import ErrorKinds, LineRun, LineTally
from dledger.cli.line_source import LineBatches

#: Sends under way at once, and their bytes: below what the producer itself refuses.
MAX_SENDS = 1024
MAX_BYTES = 32 << 20


class Stored(NamedTuple):
    """Where some lines are: side by side in one queue."""

    queue_id: int
    last_offset: int


#: Sends some lines as one atomic batch; in the order of the calls.
Send = Callable[[Sequence[bytes]], Awaitable[Stored]]


@dataclass(slots=True)
class Tally(LineTally[Stored, BrokerError]):
    """With the greatest acknowledged offset of every queue."""

    last_offsets: dict[int, int] = field(default_factory=dict)

    def place(self, stored: Stored) -> None:
        last = self.last_offsets.get(stored.queue_id, -1)
        self.last_offsets[stored.queue_id] = max(last, stored.last_offset)


_ERRORS: ErrorKinds[BrokerError] = ErrorKinds(
    caught=BrokerError,
    indeterminate=PutIndeterminate,
    interrupted=lambda: PutIndeterminate(Status.OUTCOME_UNKNOWN, "interrupted before the answer came"),
    too_long=lambda text: IllegalMessage(Status.BODY_TOO_LARGE, text),
)


class ProduceRun(LineRun[Tally, Stored, BrokerError]):
    """One pass over `batches`, `lines_per_send` lines in a send."""

    def __init__(
        self,
        send: Send,
        batches: LineBatches,
        *,
        lines_per_send: int = 1,
        on_progress: Callable[[Tally], None] | None = None,
    ) -> None:
        super().__init__(
            send,
            batches,
            Tally(),
            _ERRORS,
            max_sends=MAX_SENDS,
            max_bytes=MAX_BYTES,
            lines_per_send=lines_per_send,
            on_progress=on_progress,
        )
