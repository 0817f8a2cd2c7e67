"""What the node hands to the Dispatcher, and how far the Dispatcher says it has come."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from broker_adapter.message import ENTRY_HEADER_SIZE


class Entry(Protocol):
    """A committed entry, as `dledger.AppliedEntry` has it."""

    @property
    def index(self) -> int: ...

    @property
    def term(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def pos(self) -> int: ...


class Applied(NamedTuple):
    """The last entry that a state is made of; `end_pos` is the byte of the log behind it."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    end_pos: int


NOTHING = Applied(-1, -1, 0)


def reached_by(entry: Entry) -> Applied:
    return Applied(entry.index, entry.term, entry.pos + ENTRY_HEADER_SIZE + len(entry.body))
