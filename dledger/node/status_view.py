"""The status of a node and its cluster, for gRPC, HTTP and metrics."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from dledger.core.values import UNKNOWN_UID, FlushMode, Role
from dledger.errors import DLedgerError
from dledger.metrics import NodeMetrics
from dledger.node.admin import damaged_range
from dledger.node.disk.disk_worker import DiskWorker
from dledger.node.machine.applier import Applier
from dledger.node.members.peers import PeerLink
from dledger.node.members.repairer import Repairer, Scrubber
from dledger.node.owner_status import OwnerStatus
from dledger.node.setup.config import NodeConfig
from dledger.node.setup.member_book import MemberBook
from dledger.replica.replica import Replica
from dledger.replica.shell import RoleNotice
from dledger.rpc.log_client import LogClient
from dledger.status.cluster import NodeAnswer
from dledger.status.metrics import StatusExporter
from dledger.status.model import DISK_FULL_HEALTH, ElectionEvent, FollowerStatus, MemberAddress, NodeStatus

_ELECTIONS_KEPT = 64
_STATUS_TIMEOUT_S = 1.0
#: An fdatasync that takes longer is reported as a fault of this node.
_SLOW_FSYNC_S = 1.0


class StatusView:
    """Implements dledger.status.http.StatusSource from memory, without waiting for disk or replica."""

    def __init__(
        self,
        config: NodeConfig,
        members: MemberBook,
        flush_mode: FlushMode,
        replica: Replica,
        worker: DiskWorker,
        applier: Applier,
        repairer: Repairer,
        scrubber: Scrubber,
        links: Mapping[str, PeerLink],
        metrics: NodeMetrics,
        client_of: Callable[[str], LogClient],
        owner: OwnerStatus,
    ) -> None:
        self._config = config
        self._members = members
        self._flush_mode = flush_mode
        self._replica = replica
        self._worker = worker
        self._applier = applier
        self._repairer = repairer
        self._scrubber = scrubber
        self._links = links
        self._metrics = metrics
        self._client_of = client_of
        self._owner = owner
        self._exporter = StatusExporter(self.node_status, metrics, owner.metrics)
        self._started = time.monotonic()
        self._elections: deque[ElectionEvent] = deque(maxlen=_ELECTIONS_KEPT)
        self._leader: str | None = None
        self._leader_since_ms = 0
        self._disk_used = 0
        self._disk_free = 0
        self._is_measured = False
        self.http_address = config.http_members.get(config.node_id, "")

    def note_role(self, notice: RoleNotice) -> None:
        now_ms = time.time_ns() // 1_000_000
        if notice.leader_id != self._leader:
            self._leader = notice.leader_id
            self._leader_since_ms = now_ms if notice.leader_id else 0
        self._elections.append(
            ElectionEvent(now_ms, notice.term, notice.role.value, notice.leader_id or "", notice.cause)
        )

    def measure_disk(self) -> None:
        """Measure disk usage. Reads the file system, so call it on a thread other than the loop's."""
        directory = self._config.directory
        used = 0
        for path in directory.rglob("*"):
            used += _allocated(path)
        self._disk_used = used
        self._disk_free = self._replica.store.free_bytes()
        self._is_measured = True

    def node_status(self) -> NodeStatus:
        config, status, store = self._config, self._replica.status(), self._replica.store
        leader_id, core = status.leader_id or "", self._replica.core
        log = core.log
        return NodeStatus(
            cluster_id=config.cluster_id,
            group=config.group,
            node_id=config.node_id,
            pid=os.getpid(),
            version=_version(),
            address=config.address,
            http_address=self.http_address,
            role=status.role.value,
            term=status.term,
            role_epoch=status.role_epoch,
            incarnation=status.incarnation,
            leader_id=leader_id,
            leader_address=self._members.get(leader_id, ""),
            leader_since_unix_ms=self._leader_since_ms,
            ledger_begin_index=status.ledger_begin_index,
            ledger_end_index=status.ledger_end_index,
            ledger_end_term=status.ledger_end_term,
            durable_index=status.durable_index,
            verified_index=status.verified_index,
            committed_index=status.committed_index,
            applied_index=self._applier.applied_index,
            ledger_end_pos=status.ledger_end_pos,
            committed_pos=status.committed_pos,
            flush_mode=self._flush_mode.value,
            pending_bytes=status.pending_bytes,
            disk_used_bytes=self._disk_used,
            disk_free_bytes=self._disk_free,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            members=self._shown_members(),
            followers=self._followers(),
            elections=tuple(self._elections),
            limits_hit=self._limits_hit(status.limits_hit),
            health=self._health(),
            transferring_to=status.transferring_to or "",
            sessions=status.sessions,
            damaged=tuple(damaged_range(damage) for damage in store.damages),
            rejoining=status.rejoining,
            rebuilding=status.rebuilding,
            needs_image=status.needs_image,
            no_room=not self._replica.core.has_room,
            reserved_bytes=store.reserved_bytes,
            scrubbed_index=self._scrubber.scrubbed_index,
            scrub_found=self._repairer.found,
            repaired=self._repairer.repaired,
            cluster_time_ms=status.cluster_time_ms,
            clock_offset_ms=status.clock_offset_ms,
            clocks=status.clocks,
            clock_spread_ms=max(status.clocks.values(), default=0) - min(status.clocks.values(), default=0),
            age_purge_step_ms=status.age_purge_step_ms,
            age_purge_pause_ms=status.age_purge_pause_ms,
            newest_image=status.newest_image,
            data_file_size=store.data_file_size,
            disk=self._disk_state(),
            fsync_ms=int(self._worker.busy_seconds * 1000),
            repairing_index=self._repairer.repairing_index,
            writing_image=self._replica.retainer.is_writing,
            tls=self._tls(),
            owner=self._owner.shown(),
            membership_index=log.membership_index,
            uid=core.hard_state.uid,
            directory=core.directory_of(config.node_id),
            membership_changes=log.membership.is_joint or log.membership_index > status.committed_index,
        )

    async def cluster_status(self) -> dict[str, NodeAnswer]:
        others = [node_id for node_id in self._members if node_id != self._config.node_id]
        answers = await asyncio.gather(*(self._fetch_status(node_id) for node_id in others))
        return {self._config.node_id: self.node_status(), **dict(zip(others, answers, strict=True))}

    def metrics_text(self) -> bytes:
        return self._exporter.text()

    async def _fetch_status(self, node_id: str) -> NodeAnswer:
        try:
            return await self._client_of(node_id).get_status(_STATUS_TIMEOUT_S)
        except DLedgerError as error:
            return error.message

    def _shown_members(self) -> tuple[MemberAddress, ...]:
        http = {**self._config.http_members, self._config.node_id: self.http_address}
        membership = self._replica.core.membership
        return tuple(
            MemberAddress(
                node_id,
                address,
                http.get(node_id, ""),
                membership.role_of(node_id),
                membership.uid_of(node_id),
            )
            for node_id, address in self._members.items()
        )

    def _followers(self) -> tuple[FollowerStatus, ...]:
        return tuple(
            FollowerStatus(
                node_id=f.node_id,
                connected=(link := self._links.get(f.node_id)) is not None and link.is_connected,
                push_state=f.push_state,
                match_index=f.match_index,
                lag_entries=f.lag_entries,
                lag_bytes=f.lag_bytes,
                inflight_bytes=f.inflight_bytes,
                last_contact_ms=f.last_contact_ms,
                owner_lag_bytes=-1 if f.owner is None else f.owner.lag_bytes,
                owner_unfit=f.owner is not None and not f.owner.fit,
                not_ready=f.not_ready,
            )
            for f in self._replica.status().followers
        )

    def _limits_hit(self, of_replica: Mapping[str, int]) -> dict[str, int]:
        return {**of_replica, **self._metrics.limits_hit}

    def _disk_state(self) -> str:
        """Return the worst condition of the disk. "low" means that appends will fail after one or two more
        data files."""
        if self._worker.busy_seconds > _SLOW_FSYNC_S:
            return "stalled"
        if not self._replica.core.has_room:
            return "full"
        low = 2 * self._replica.store.data_file_size
        return "low" if self._is_measured and self._disk_free < low else "ok"

    def _tls(self) -> str:
        section = self._config.tls
        if section is None:
            return "off"
        return "mutual" if section.client_auth == "require" else "server"

    def _health(self) -> str:
        busy = self._worker.busy_seconds
        if busy > _SLOW_FSYNC_S:
            return f"disk: an fdatasync has taken {busy:.1f} s so far"
        if damages := self._replica.store.damages:
            first = damages[0]
            repairing_index = self._repairer.repairing_index
            progress = f"; the repair is at {repairing_index}" if repairing_index >= 0 else ""
            waiting = f"; {text}" if (text := self._replica.rebuilding.text()) else ""
            return (
                f"damaged: entries {first.first_index}..{first.last_index} cannot be read{progress}{waiting}"
            )
        if not self._replica.core.has_room:
            return DISK_FULL_HEALTH
        if not (core := self._replica.core).is_member:
            if core.hard_state.uid == UNKNOWN_UID:
                return "not a member: it waits for `dledger member add`"
            return (
                "not a member: it was removed, or has not received its addition yet (`dledger member list`)"
            )
        if core.role is not Role.LEADER and self._leader is None:
            return "no leader"
        if rejoining := self._replica.status().rejoining:
            return f"rejoining: {rejoining}"
        if rebuilding := self._replica.rebuilding.text():
            return rebuilding
        if self._replica.admission.state.needs_image:
            return "was too far behind: waits for a state image"
        return "ok"


@lru_cache
def _version() -> str:
    try:
        return metadata.version("dledger")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "0+checkout"


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:  # removed meanwhile
        return 0
