"""Mistakes that a review planted, or found: around purges, damage, room, barred terms and sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dledger.client.async_client import AsyncClient
from dledger.client.session import Session
from dledger.core.messages import VoteRequest
from dledger.core.raft import RaftCore
from dledger.core.values import Base, VoteResult
from dledger.node.status_view import StatusView
from dledger.replica import pushes, retainer
from dledger.replica.log_state import LogState
from dledger.replica.rebuilding import StateRebuild
from dledger.replica.retainer import Retainer
from dledger.replica.retention import Border, held_back
from dledger.status.model import NodeStatus
from dledger.store import disk_store
from dledger.store.damage import KnownDamage


def barred_pre_vote_granted(patch: pytest.MonkeyPatch) -> None:
    """A node that may not vote in a term grants pre-votes for it: candidates stand in vain."""
    original = RaftCore._judge_vote

    def judge(core: RaftCore, request: VoteRequest) -> VoteResult:
        if not request.pre_vote:
            return original(core, request)
        barred, core.hard_state = core.hard_state, replace(core.hard_state, barred_term=-1)
        try:
            return original(core, request)
        finally:
            core.hard_state = barred

    patch.setattr(RaftCore, "_judge_vote", judge)


def interrupted_purge_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A PURGE that was truncated with a leadership counts as pending in the next one: that never purges."""
    original = Retainer.stop

    def stop(it: Retainer) -> None:
        pending = it._purge_pending
        original(it)
        it._purge_pending = pending

    patch.setattr(Retainer, "stop", stop)


def last_follower_holds_back(patch: pytest.MonkeyPatch) -> None:
    """The last follower in order decides how far to purge, and a slower one before it is left behind."""

    def held_back_by_last(
        borders: Sequence[Border],
        wanted: Base,
        match: Sequence[tuple[int, int]],
        end_pos: int,
        hold_bytes: int,
    ) -> Base | None:
        close = [m for m in match if end_pos - m[1] <= hold_bytes and m[0] < wanted.index]
        return held_back(borders, wanted, close[-1:], end_pos, hold_bytes)

    patch.setattr(retainer, "held_back", held_back_by_last)


def partly_purged_damage_leads(patch: pytest.MonkeyPatch) -> None:
    """A node leads although others may need entries of a damage of which only the first half was purged."""

    def lacks_entries(it: StateRebuild) -> bool:
        upto = it._unrepairable_upto()
        return any(damage.first_index > upto for damage in it._replica.store.damages)

    patch.setattr(StateRebuild, "lacks_entries", lacks_entries)


def damage_hidden(patch: pytest.MonkeyPatch) -> None:
    """An operator never learns of a damage that cannot be repaired."""
    original: Callable[[StatusView], NodeStatus] = StatusView.node_status
    patch.setattr(StatusView, "node_status", lambda view: replace(original(view), damaged=()))


def image_ends_sessions_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """601 is answered although the entry that evicted the session may yet be truncated on every node."""
    patch.setattr(LogState, "uncommitted_image", -1)


def sessions_renewed_side_by_side(patch: pytest.MonkeyPatch) -> None:
    """Each of the callers that learn of an expiry opens a session, and all but one are left behind."""

    async def new_session(client: AsyncClient, *, timeout: float | None = None) -> Session:
        old, session = client._appender, await client.open_session(timeout=timeout)
        client._appender = session
        await old.close(0)
        return session

    patch.setattr(AsyncClient, "new_session", new_session)


def queue_not_counted(patch: pytest.MonkeyPatch) -> None:
    """What waits for a slow disk takes no room: a follower accepts more than fits, and ends."""
    original = pushes.lacks_room

    def lacks_room(*args: object) -> bool:
        store = args[2]
        return not store.has_room_after(store.tail) and original(*args)  # type: ignore[attr-defined, arg-type]

    patch.setattr("dledger.replica.pushes.lacks_room", lacks_room)


def damage_keeps_its_purged_begin(patch: pytest.MonkeyPatch) -> None:
    """A purge up to a damage leaves it with the end of a purged entry as its begin: no repair fits."""
    original = disk_store.clip

    def clip(damages: Sequence[KnownDamage], *bounds: object) -> tuple[KnownDamage, ...]:
        before = {known.damage: known.before for known in damages}
        clipped = original(damages, *bounds)  # type: ignore[arg-type]
        return tuple(known._replace(before=before.get(known.damage, known.before)) for known in clipped)

    patch.setattr(disk_store, "clip", clip)
