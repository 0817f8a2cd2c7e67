"""How far the Dispatcher has come."""

from __future__ import annotations

from dledger import Applied, AppliedEntry
from dledger.platform import ENTRY_HEADER_SIZE

NOTHING = Applied(-1, -1, 0)


def reached_by(entry: AppliedEntry) -> Applied:
    return Applied(entry.index, entry.term, entry.pos + ENTRY_HEADER_SIZE + len(entry.body))
