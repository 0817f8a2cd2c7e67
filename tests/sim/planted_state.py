"""Mistakes in keeping a durable state machine, planted as those in tests.sim.planted are."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.infra.loops.readable import ReadableLog
from dledger.node.machine.applier import Applier
from dledger.node.machine.state_feeder import RecoveryResult, StateFeeder
from dledger.node.machine.state_plan import LoadResult, SaveStep, StatePlan, StateStep
from tests.sim import planted_images


def taken_over_whatever_the_log_says(patch: pytest.MonkeyPatch) -> None:
    """State ahead of a log that was lost: what comes there instead is never applied."""

    def recover(feeder: StateFeeder) -> RecoveryResult | None:
        found = original(feeder)
        return None if found is None else RecoveryResult(found.found, "")

    original = StateFeeder.recover
    patch.setattr(StateFeeder, "recover", recover)


def applied_twice(patch: pytest.MonkeyPatch) -> None:
    """What the machine had is applied to it again, from the last entry on."""

    def recovered(plan: StatePlan, applied: int) -> None:
        original(plan, applied - 1)

    original = StatePlan.recovered
    patch.setattr(StatePlan, "recovered", recovered)


def one_left_out(patch: pytest.MonkeyPatch) -> None:
    """The entry behind the state is skipped."""

    def recovered(plan: StatePlan, applied: int) -> None:
        original(plan, applied + 1)

    original = StatePlan.recovered
    patch.setattr(StatePlan, "recovered", recovered)


def not_noted_as_committed(patch: pytest.MonkeyPatch) -> None:
    """applied > committed: rule 8 is broken until a leader tells how far it is."""
    patch.setattr(StateFeeder, "_note_committed", lambda feeder, index: True)


def rest_of_the_batch_not_committed(patch: pytest.MonkeyPatch) -> None:
    """The committed index lies inside a batch."""
    original = StateFeeder._note_committed

    def note(feeder: StateFeeder, index: int) -> bool:
        feeder._batch_end = -1
        return original(feeder, index)

    patch.setattr(StateFeeder, "_note_committed", note)


def not_replayed(patch: pytest.MonkeyPatch) -> None:
    """Behind an image, nothing is derived from the entries that it is made of."""

    def loaded(plan: StatePlan, found: LoadResult) -> None:
        original(plan, found._replace(base_index=found.applied))

    original = StatePlan.loaded
    patch.setattr(StatePlan, "loaded", loaded)


def saved_too_late(patch: pytest.MonkeyPatch) -> None:
    """An image holds entries that come behind it, which are applied to it again wherever it is loaded."""

    def following(plan: StatePlan, *log: int, needs_image: bool) -> StateStep | None:
        request, plan._request = plan._request, None
        piece = original(plan, *log, needs_image=needs_image)
        if piece is None and request is not None and plan.applied >= request.index:
            return SaveStep(request)
        plan._request = request
        return piece

    original = StatePlan.next
    patch.setattr(StatePlan, "next", following)
    planted_images.state_of_a_later_point(patch)


def uncommitted_applied_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    """What is in memory is handed over beyond the end of what is committed."""

    def wire(applier: Applier, readable: ReadableLog, *, cached: Any, **others: Any) -> None:
        original(applier, readable, cached=lambda first, last, size: cached(first, last + 4, size), **others)

    original = Applier.wire
    patch.setattr(Applier, "wire", wire)


def old_log_read_as_the_new_one(patch: pytest.MonkeyPatch) -> None:
    """While a log is being replaced, its uncommitted end passes for what is committed in the new one."""

    def resetting(readable: ReadableLog, generation: int, base_index: int) -> None:
        readable._generation = max(readable._generation, generation)
        readable._stored = base_index
        readable._committed = max(readable._committed, base_index)

    patch.setattr(ReadableLog, "resetting", resetting)
