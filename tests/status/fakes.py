"""A cluster of three that says whatever a test wants."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dledger.status.metrics import StatusExporter
from dledger.status.model import ElectionEvent, FollowerStatus, MemberAddress, NodeStatus

NODES = ("n1", "n2", "n3")
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class FakeHistogram:
    buckets: tuple[float, ...] = (0.001, 0.01, 0.1)
    counts: tuple[int, ...] = (5, 3, 0, 2)
    sum: float = 1.25


@dataclass
class FakeNodeMetrics:
    append_latency: FakeHistogram = field(default_factory=FakeHistogram)
    fsync_latency: FakeHistogram = field(
        default_factory=lambda: FakeHistogram(counts=(1, 0, 0, 0), sum=0.0005)
    )
    elections_by_cause: dict[str, int] = field(default_factory=lambda: {"timeout": 2, "won": 1})
    keeps_cpus_awake: Callable[[], bool] = lambda: True
    loop_lag_s: Callable[[], float] = lambda: 0.5
    loop_stalls: Callable[[], int] = lambda: 3


def make_status(node_id: str = "n1", role: str = "LEADER", **changes: object) -> NodeStatus:
    leader = node_id if role == "LEADER" else "n1"
    status = NodeStatus(
        cluster_id="orders",
        group="main",
        node_id=node_id,
        pid=4711,
        version="0.1.0",
        address=f"127.0.0.1:{20910 + int(node_id[-1])}" if node_id[-1].isdigit() else "127.0.0.1:20910",
        http_address="",
        role=role,
        term=7,
        role_epoch=(3 << 32) + 2,
        incarnation=3,
        leader_id=leader,
        leader_address="127.0.0.1:20911",
        leader_since_unix_ms=now_ms() - HOUR_MS,
        ledger_begin_index=0,
        ledger_end_index=1_204_331,
        ledger_end_term=7,
        durable_index=1_204_331,
        verified_index=1_204_331,
        committed_index=1_204_330,
        applied_index=1_204_329,
        ledger_end_pos=512_000_000,
        committed_pos=511_999_000,
        flush_mode="SYNC_FLUSH",
        pending_bytes=1000,
        disk_used_bytes=1_073_741_824,
        disk_free_bytes=80_000_000_000,
        uptime_ms=5 * HOUR_MS,
        members=tuple(MemberAddress(n, f"127.0.0.1:2091{n[-1]}", f"127.0.0.1:809{n[-1]}") for n in NODES),
        limits_hit={"pending_bytes": 12},
        sessions=4,
    )
    return replace(status, **changes)  # type: ignore[arg-type]


def make_follower(
    node_id: str, lag_entries: int = 0, lag_bytes: int = 0, **changes: object
) -> FollowerStatus:
    follower = FollowerStatus(
        node_id=node_id,
        connected=True,
        push_state="APPEND",
        match_index=1_204_331 - lag_entries,
        lag_entries=lag_entries,
        lag_bytes=lag_bytes,
        inflight_bytes=0,
        last_contact_ms=42,
    )
    return replace(follower, **changes)  # type: ignore[arg-type]


def make_election(term: int, cause: str, role: str, leader_id: str, ago_ms: int) -> ElectionEvent:
    return ElectionEvent(unix_ms=now_ms() - ago_ms, term=term, role=role, leader_id=leader_id, cause=cause)


class FakeSource:
    """A StatusSource whose answers are plain attributes."""

    def __init__(self, own: str = "n1") -> None:
        self.own = own
        self.asked = 0
        self.answers: dict[str, NodeStatus | str] = {
            "n1": make_status(
                "n1",
                followers=(make_follower("n2", 3, 900), make_follower("n3", 5120, 5_200_000)),
                elections=(
                    make_election(6, "quorum-lost", "FOLLOWER", "", HOUR_MS + 9000),
                    make_election(7, "stream-lost", "CANDIDATE", "", HOUR_MS + 60),
                    make_election(7, "won", "LEADER", "n1", HOUR_MS),
                ),
            ),
            "n2": make_status(
                "n2", "FOLLOWER", elections=(make_election(7, "leader-seen", "FOLLOWER", "n1", HOUR_MS - 20),)
            ),
            "n3": make_status("n3", "FOLLOWER", ledger_end_index=1_199_211),
        }
        self.metrics = FakeNodeMetrics()
        self.exporter = StatusExporter(self.node_status, self.metrics)

    def node_status(self) -> NodeStatus:
        status = self.answers[self.own]
        assert isinstance(status, NodeStatus)
        return status

    async def cluster_status(self) -> dict[str, NodeStatus | str]:
        self.asked += 1
        return dict(self.answers)

    def metrics_text(self) -> bytes:
        return self.exporter.text()

    def change(self, node_id: str, **changes: object) -> None:
        status = self.answers[node_id]
        assert isinstance(status, NodeStatus)
        self.answers[node_id] = replace(status, **changes)  # type: ignore[arg-type]

    def fail_over_to_n2(self) -> None:
        """n1 dies, n2 leads in term 8."""
        self.answers["n1"] = "connection refused"
        self.change(
            "n2",
            role="LEADER",
            term=8,
            leader_id="n2",
            leader_since_unix_ms=now_ms() - 1000,
            followers=(
                make_follower(
                    "n1", 10, 4000, connected=False, push_state="DISCONNECTED", last_contact_ms=1200
                ),
                make_follower("n3"),
            ),
            elections=(
                make_election(8, "timeout", "CANDIDATE", "", 1100),
                make_election(8, "won", "LEADER", "n2", 1000),
            ),
        )
        self.change("n3", term=8, leader_id="n2")
