"""Halves of transactions: what producers have begun, and how each is to end.

Whoever ends a transaction, the client that began it or one that the broker asks about it, ends it in the same
way. It is told of once: an end that nobody knows the outcome of may take effect at any later moment, also
because the broker asked and was told the same again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from chaos.trace.operations import Process
from chaos.trace.outcomes import ClientError
from chaos.workloads.tally import Tally

#: How transactions end: by their client (committed, rolled back), or when the broker asks.
_COMMITTED, _ROLLED_BACK = 0.5, 0.75
#: Of those that are asked about.
_COMMITTED_LATE = 0.5


@dataclass(slots=True)
class Half:
    """One transaction. `message`: what the trace tells of it. `process`: a new one of the producer's.
    `is_orphan`: its client leaves it alone."""

    message: dict[str, Any]
    process: Callable[[], Process]
    is_commit: bool
    is_orphan: bool
    is_ended: bool = False


@dataclass(slots=True)
class Transactions:
    """Those of all producers of a run, by the number of the message: the broker asks whom it likes."""

    tally: Tally
    _halves: dict[int, Half] = field(default_factory=dict)

    def begin(self, message: dict[str, Any], process: Callable[[], Process], rng: Random) -> Half:
        """Draw how a transaction is to end."""
        draw = rng.random()
        is_orphan = draw >= _ROLLED_BACK
        is_commit = rng.random() < _COMMITTED_LATE if is_orphan else draw < _COMMITTED
        half = self._halves[message["mid"]] = Half(message, process, is_commit, is_orphan)
        return half

    def __getitem__(self, mid: int) -> Half:
        return self._halves[mid]

    async def end(self, half: Half, act: Callable[[], Awaitable[object]], began: int) -> bool:
        """Have the client do `act`, which ends it; whether that is certain. `began`: monotonic ns."""
        if half.is_ended:
            return await _is_answered(act)
        half.is_ended = True
        process = half.process()
        where = {name: half.message[name] for name in ("topic", "q")}
        if half.is_commit:
            process.invoke("txn_commit", **half.message)
        else:
            process.invoke("txn_rollback", mid=half.message["mid"], **where)
        try:
            await act()
        except ClientError as error:
            self.tally.not_ok(process.failed(error), f"{error.kind} {error.code}")
            return False
        process.ok(**where)
        if half.is_commit:
            self.tally.ok(began, process.now())
        return True


async def _is_answered(act: Callable[[], Awaitable[object]]) -> bool:
    try:
        await act()
    except ClientError:
        return False
    return True
