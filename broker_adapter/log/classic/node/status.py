"""Status of a classic node. It contains physical offsets where a replicated log has indexes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import metadata
from typing import Protocol

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.log.classic.age_pause import AgePause
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.node.group_commit import GroupCommit
from broker_adapter.log.classic.node.roles import RoleNotifier
from dledger import MemberAddress, NodeConfig, NodeStatus
from dledger.metrics import NodeMetrics
from dledger.node.program_ports import ProgramPorts

_SLOW_FSYNC_S = 1.0


class StatusFacts(Protocol):
    """The part of `broker_adapter.log.classic.node.node.ClassicNode` that the status uses."""

    config: NodeConfig
    settings: ClassicSettings
    metrics: NodeMetrics
    log: CommitLogFiles
    commit: GroupCommit
    roles: RoleNotifier
    ports: ProgramPorts
    started: float
    pause: AgePause
    monotonic_ms: Callable[[], int]
    health: str

    @property
    def durable_index(self) -> int: ...

    @property
    def committed_index(self) -> int: ...

    @property
    def committed_pos(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    def cluster_time_ms(self) -> int: ...


def status_of(node: StatusFacts) -> NodeStatus:
    config, log, event = node.config, node.log, node.roles.current
    leader = (event.leader_id or "") if event else ""
    since = node.commit.syncing_since
    busy_s = 0.0 if since is None else time.perf_counter() - since
    http = {**config.http_members, config.node_id: node.ports.http_address}
    return NodeStatus(
        cluster_id=config.cluster_id,
        group=config.group,
        node_id=config.node_id,
        pid=os.getpid(),
        version=metadata.version("dledger"),
        address=config.address,
        http_address=node.ports.http_address,
        role=event.role.value if event else "UNKNOWN",
        term=event.term if event else 0,
        role_epoch=event.role_epoch if event else 0,
        incarnation=0,
        leader_id=leader,
        leader_address=config.members.get(leader, ""),
        leader_since_unix_ms=event.role_epoch if event and leader == config.node_id else 0,
        ledger_begin_index=log.begin_offset,
        ledger_end_index=log.end_offset - 1,
        ledger_end_term=0,
        durable_index=node.durable_index,
        verified_index=log.end_offset - 1,
        committed_index=node.committed_index,
        applied_index=node.applied_index,
        ledger_end_pos=log.end_offset,
        committed_pos=node.committed_pos,
        flush_mode=node.settings.flush,
        pending_bytes=node.commit.pending_bytes,
        disk_used_bytes=log.end_offset - log.begin_offset,
        disk_free_bytes=_free_bytes(config.directory),
        uptime_ms=int(1000 * (time.monotonic() - node.started)),
        members=tuple(
            MemberAddress(node_id, address, http.get(node_id, ""))
            for node_id, address in config.members.items()
        ),
        limits_hit=dict(node.metrics.limits_hit),
        health=_health(node, busy_s),
        cluster_time_ms=node.cluster_time_ms(),
        age_purge_step_ms=node.pause.step_ms,
        age_purge_pause_ms=node.pause.remaining_ms(node.monotonic_ms()),
        data_file_size=log.file_size,
        fsync_ms=int(1000 * busy_s),
        owner=node.ports.shown(),
    )


def _health(node: StatusFacts, busy_s: float) -> str:
    if busy_s > _SLOW_FSYNC_S:
        return f"disk: an fdatasync has taken {busy_s:.1f} s so far"
    return node.health


def _free_bytes(directory: os.PathLike[str]) -> int:
    try:
        stats = os.statvfs(directory)
    except OSError:
        return 0
    return stats.f_bavail * stats.f_frsize
