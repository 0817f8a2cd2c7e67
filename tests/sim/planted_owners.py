"""Mistakes in what programs that own a node rely on, as `planted` has the classic ones of Raft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dledger.core.cluster_clock import ClusterClock, Stamp
from dledger.core.values import Tail
from dledger.node import async_shell
from dledger.replica import owned_append
from dledger.replica.admission import AppendAdmission
from dledger.replica.clock_keeper import ClockKeeper
from dledger.replica.owned_append import Assigned
from dledger.replica.replica import Replica
from dledger.store.format.batch import Batch


def epoch_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Whoever leads takes what its owner appends, also in the belief of an older leadership."""
    original = owned_append._judge

    def judge(replica: Replica, sizes: Sequence[int], expected: tuple[int, int]) -> None:
        original(replica, sizes, (replica.core.term, replica.core.role_epoch))

    patch.setattr(owned_append, "_judge", judge)


def filled_before_it_was_judged(patch: pytest.MonkeyPatch) -> None:
    """What `fill` has numbered is refused after that: a hole."""
    original, judge = owned_append.prepare, owned_append._judge

    def prepare(replica: Replica, sizes: Sequence[int], fill: Any, expected: Any, now_ms: int) -> Any:
        prepared = original(replica, sizes, fill, expected, now_ms)
        judge(replica, sizes, expected)
        return prepared

    patch.setattr(owned_append, "_judge", lambda replica, sizes, expected: None)
    patch.setattr(async_shell, "prepare", prepare)


def room_judged_after_the_fill(patch: pytest.MonkeyPatch) -> None:
    """That there is no room is known only once the batch is there."""
    original, why_no_room = owned_append.prepare, AppendAdmission.why_no_room
    patch.setattr(AppendAdmission, "why_no_room", lambda admission, end_pos, last_index: None)

    def prepare(replica: Replica, *args: Any) -> Any:
        prepared = original(replica, *args)
        batch: Batch = prepared.batch
        problem = why_no_room(replica.admission, batch.end_pos, batch.last_index)
        if problem is not None:
            raise problem
        return prepared

    patch.setattr(async_shell, "prepare", prepare)


def stamp_not_reckoned_with(patch: pytest.MonkeyPatch) -> None:
    """The places that `fill` is told leave out the entry that carries the time."""
    original = owned_append._places

    def places(
        admission: AppendAdmission,
        tail: Tail,
        term: int,
        sizes: Sequence[int],
        head: bytes | None,
        stamp_ms: int,
    ) -> Assigned:
        return original(admission, tail, term, sizes, None, stamp_ms)

    patch.setattr(owned_append, "_places", places)


def leadership_begins_at_the_last_stamp(patch: pytest.MonkeyPatch) -> None:
    """A new leader goes on from the stamps in its log, whatever its predecessor told owners and members after
    them."""
    original = ClockKeeper.first_stamp

    def first_stamp(keeper: ClockKeeper, now_ms: int) -> Stamp:
        admission = keeper._replica.admission
        limits = admission.limits
        admission.limits = replace(limits, owner_stamp_every_ms=0)
        try:
            return original(keeper, now_ms)
        finally:
            admission.limits = limits

    patch.setattr(ClockKeeper, "first_stamp", first_stamp)
    patch.setattr(ClusterClock, "catch_up", lambda *_: None)
