"""Append the lines of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.cli.line_run import ErrorKinds, LineRun, LineTally
from dledger.cli.line_source import LineBatches
from dledger.client.values import AppendResult
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest


class Appender(Protocol):
    """What a client offers, as far as it matters here."""

    async def append_many(self, bodies: Sequence[bytes], /) -> list[AppendResult]: ...


@dataclass(slots=True)
class Tally(LineTally[list[AppendResult], DLedgerError]):
    """With the range of indexes that the lines got."""

    first_index: int = -1
    last_index: int = -1

    def place(self, stored: list[AppendResult]) -> None:
        # -1: stored, but the cluster does not know any more where.
        indexes = [result.index for result in stored if result.index >= 0]
        if indexes:
            self.last_index = max(self.last_index, indexes[-1])
            self.first_index = indexes[0] if self.first_index < 0 else min(self.first_index, indexes[0])


_ERRORS: ErrorKinds[DLedgerError] = ErrorKinds(
    caught=DLedgerError,
    indeterminate=Indeterminate,
    interrupted=lambda: Indeterminate("interrupted before the answer came", code=Code.TIMEOUT),
    too_long=lambda text: InvalidRequest(
        f"{text} (--max-line-bytes is the limit here, the servers have their own)", code=Code.BODY_TOO_LARGE
    ),
)


class AppendRun(LineRun[Tally, list[AppendResult], DLedgerError]):
    """One pass over `batches`, each appended as it comes. Their sizes bound the bytes in flight."""

    def __init__(
        self,
        appender: Appender,
        batches: LineBatches,
        *,
        in_flight: int,
        on_progress: Callable[[Tally], None] | None = None,
    ) -> None:
        super().__init__(
            appender.append_many, batches, Tally(), _ERRORS, max_sends=in_flight, on_progress=on_progress
        )
