"""Mistakes around a node's own files, its caches and its peer service."""

from __future__ import annotations

import pytest

from dledger.core.effects import ResetLog
from dledger.core.following import Follower
from dledger.core.messages import InstallBase
from dledger.infra.transport.peer_names import PeerNames
from dledger.node.disk.disk_worker import DiskJobs, OtherJob, StoredReport
from dledger.replica.shell import ResetJob
from dledger.replica.tail_cache import TailCache
from dledger.rpc.peer_service import PeerService
from dledger.store.disk_store import DiskLogStore


def index_before_the_entries(patch: pytest.MonkeyPatch) -> None:
    """Index records are written before the entries are durable: after a power loss a torn write looks like
    damage to what was acknowledged, and the node gives up its vote for it."""
    original = DiskLogStore.sync

    def sync(store: DiskLogStore) -> int:
        if store._durable != store._tail:
            store._write_records(*store._reader.pending_records())
        return original(store)

    patch.setattr(DiskLogStore, "sync", sync)


def joined_bytes_outlive_a_truncation(patch: pytest.MonkeyPatch) -> None:
    """A range that was pushed before a truncation is pushed again with its old bytes: the follower refuses
    them for ever, and never catches up."""
    original = TailCache.truncate_after

    def truncate_after(cache: TailCache, last_index: int) -> None:
        joined = cache._joined
        original(cache, last_index)
        cache._joined = joined

    patch.setattr(TailCache, "truncate_after", truncate_after)


def base_installed_over_stored_entries(patch: pytest.MonkeyPatch) -> None:
    """INSTALL_BASE makes a log begin anew that holds the base, and so throws away what it acknowledged."""
    original = Follower._install_base

    def install_base(following: Follower, peer: str, message: InstallBase) -> None:
        core, log, base = following.core, following.core.log, message.base
        if log.base.index < base.index and log.holds(base.index, base.term):
            log.reset_to(base, message.membership or log.memberships[-1])
            core.committed_index = max(core.committed_index, base.index)
            core.emit(ResetLog(base, log.generation))
        original(following, peer, message)

    patch.setattr(Follower, "_install_base", install_base)


def reset_reported_before_it_is_done(patch: pytest.MonkeyPatch) -> None:
    """Until the disk has carried out a reset it has the old log, which may have another entry at the index
    that readers and the replica are told is there."""
    original = DiskJobs.do

    def do(jobs: DiskJobs, job: OtherJob) -> None:
        if isinstance(job, ResetJob):
            jobs._deliver(StoredReport(job.generation, job.base.index, job.base.term))
        original(jobs, job)

    patch.setattr(DiskJobs, "do", do)


def fetch_without_certificate_check(patch: pytest.MonkeyPatch) -> None:
    """Any certificate of the CA, a client's too, reads the log as a member: behind the access control."""
    original = PeerService.fetch

    async def fetch(service: PeerService, request: object, context: object) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(PeerNames, "check", lambda names, node, auth_context: None)
            await original(service, request, context)  # type: ignore[arg-type]

    patch.setattr(PeerService, "fetch", fetch)
