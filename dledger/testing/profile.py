"""The profile of a simulated run: the quality of its network, disks and clocks, drawn from the seed.

Each seed enables some of the faults. A run with all faults at the same time rarely makes enough progress to
reach rare states.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from dledger.core.values import Timing
from dledger.replica.retention import RetentionLimits

#: Severe faults. Each is drawn separately, after all other choices.
BAD_DAYS = ("lose_disk", "clock_jump", "full_disk", "failing_disk", "flip_bits")

#: Faults of runs that constantly damage and purge the log, on full and slow disks.
PURGE_FAULTS = ("crash_in_purge", "crash_in_repair", "full_slow_disk")

#: Share of such runs.
#: Share of seeds whose members change.
CHANGING_MEMBERS = 0.12
PURGED_DAMAGE = 0.15

#: Share of runs in which all disks are always slow, and the minimum duration of each job.
SLOW_DISKS = 0.1
SLOW_DISKS_MS = (30, 75, 120)

#: Share of runs that lose a minority of nodes for good.
MINORITY_GONE = 0.4

KEEP_ALL = RetentionLimits()

FAULTS = (
    "crash_process",
    "crash_power",
    "crash_all",
    "crash_in_disk_operation",
    "pause",
    "isolate",
    "one_way",
    "split",
    "break_stream",
    "break_all_streams",
    "slow_disk",
    "stuck_disk",
    "transfer",
    "graceful_stop",
    "lossy_minute",
)

SIM_TIMING = Timing(
    heartbeat_ms=40,
    election_min_ms=150,
    election_max_ms=300,
    transfer_timeout_ms=300,
    preferred_check_ms=400,
    commit_stall_ms=1500,
)


@dataclass(frozen=True)
class Profile:
    """All choices of a seed before its run starts."""

    nodes: int = 3
    spares: int = 0  # of these nodes, the last ones: not members at the beginning
    voter_counts: tuple[int, ...] = ()  # numbers of voters that changes reach one after the other
    leader_leaves: float = 0.5  # chance that a leader is among the voters that leave
    on_disk: bool = False  # DiskLogStore on SimDisk; otherwise MemoryLogStore
    data_file_size: int = 4096  # small, so that files roll
    timing: Timing = SIM_TIMING
    fault_phase_ms: int = 8000
    fault_every_ms: int = 400  # on average
    faults: tuple[str, ...] = FAULTS
    minority_gone: bool = False  # before everything heals, a majority alone must make progress
    # network
    delay_min_ms: int = 0
    delay_max_ms: int = 4
    spike: float = 0.0  # fraction of messages that take up to spike_max_ms
    spike_max_ms: int = 200
    loss: float = 0.0
    duplication: float = 0.0
    keepalive_ms: int = 400  # silence after which a waiting end gives up a stream
    late_delivery: float = 0.3  # chance that data in flight on a broken stream still arrives
    # disk
    fsync_min_ms: int = 0
    fsync_max_ms: int = 3
    own_sync: float = 0.3  # chance that a queued write does not share the sync of the previous one
    # nodes
    skew: float = 0.0  # clocks run at 1 +- skew
    tick_ms: int = 10
    preferred_leaders: tuple[str, ...] = ()
    max_push_bytes: int = 700  # small, so that pushes are split
    max_inflight_bytes: int = 2000
    max_transfer_lag: int = 1000
    group_bytes: int = 1200
    cache_bytes: int = 4000  # small, so that lagging followers are served from the store
    checkpoint_every_ms: int = 300
    scrub_every_ms: int = 0  # interval between scrubs of a few KiB; 0: never
    # clients
    plain_clients: int = 2
    session_clients: int = 2
    readers: int = 2
    owned: bool = False  # programs that own the nodes append, too
    think_max_ms: int = 40
    max_batch: int = 5
    body_max_bytes: int = 60
    window: int = 4  # batches in flight per session
    max_sessions: int = 50
    stamp_every_ms: int = 1000
    retention: RetentionLimits = KEEP_ALL
    request_timeout_ms: int = 500

    @property
    def loses_members(self) -> bool:
        """Return True if nodes lose their disks while the members change."""
        return "lose_member" in self.faults

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(self.nodes))

    @property
    def founders(self) -> tuple[str, ...]:
        return self.node_ids[: self.nodes - self.spares]


#: Approximate size of an entry in a push, in addition to its body.
_ENTRY_OVERHEAD = 70
_SYNCS_OF_A_ROUND = 4
QUIET = Profile(faults=(), plain_clients=0, session_clients=0, readers=0)


@dataclass
class _Draw:
    rng: Random
    names: list[str] = field(default_factory=list)

    def some(self, chance: float, low: float, high: float) -> float:
        return round(self.rng.uniform(low, high), 4) if self.rng.random() < chance else 0.0


def draw_profile(rng: Random, nodes: int | None = None, on_disk: bool | None = None) -> Profile:
    """Draw the profile of a seed. `nodes` and `on_disk` override the drawn values."""
    draw = _Draw(rng)
    drawn_nodes = 5 if rng.random() < 0.35 else 3
    drawn_disk = rng.random() < 0.25
    count = nodes or drawn_nodes
    sessions = rng.randint(1, 3)
    enabled = tuple(f for f in FAULTS if rng.random() < 0.6) or ("crash_process",)
    preferred = (f"n{rng.randrange(count)}",) if rng.random() < 0.3 else ()
    profile = Profile(
        nodes=count,
        on_disk=drawn_disk if on_disk is None else on_disk,
        fault_phase_ms=rng.randint(5000, 12000),
        fault_every_ms=rng.choice((120, 250, 500, 1000)),
        faults=enabled,
        delay_max_ms=rng.choice((2, 5, 20)),
        spike=draw.some(0.5, 0.005, 0.05),
        loss=draw.some(0.6, 0.005, 0.2),
        duplication=draw.some(0.6, 0.01, 0.2),
        keepalive_ms=rng.choice((80, 300, 900)),
        late_delivery=rng.choice((0.0, 0.3, 0.8)),
        fsync_max_ms=rng.choice((1, 5, 25)),
        skew=rng.choice((0.0, 0.1, 0.35)),
        tick_ms=rng.choice((5, 10, 20)),
        preferred_leaders=preferred,
        max_push_bytes=rng.choice((400, 700, 2000)),
        max_inflight_bytes=rng.choice((800, 3000, 20000)),
        max_transfer_lag=rng.choice((5, 1000)),
        group_bytes=rng.choice((300, 1200, 64 << 10)),
        cache_bytes=rng.choice((0, 1500, 8000)),
        think_max_ms=rng.choice((5, 30, 100)),
        plain_clients=rng.randint(1, 2),
        session_clients=sessions,
        readers=rng.randint(1, 4),
        max_batch=rng.randint(1, 5),
        window=rng.choice((1, 4, 10)),
        # With fewer than there are clients, their sessions would evict each other forever.
        max_sessions=rng.choice((sessions + 1, 50)),
    )
    return _with_patience(_with_bad_days(rng, profile))


def with_purged_damage(rng: Random, profile: Profile, on_disk: bool | None = None) -> Profile:
    """Turn some profiles into runs that constantly damage and purge the log, so that damage lies below,
    across and right after the start of the log. `rng` is a separate one, so that other runs do not change."""
    if rng.random() >= PURGED_DAMAGE:
        return profile
    others = tuple(fault for fault in profile.faults if rng.random() < 0.3)
    size = rng.choice((1024, 2048, 4096))
    retention = RetentionLimits(
        max_bytes=rng.choice((1, 1, 2, 4)) * size, hold_bytes=rng.choice((0, 4 * size)), check_ms=20
    )
    return replace(
        profile,
        on_disk=rng.random() < 0.8 if on_disk is None else on_disk,
        data_file_size=size,
        faults=("flip_bits", "flip_bits", *PURGE_FAULTS, *others),
        fault_every_ms=rng.choice((60, 120, 250)),
        retention=retention,
        scrub_every_ms=rng.choice((10, 20, 100)),
    )


def with_changing_members(rng: Random, profile: Profile) -> Profile:
    """Turn some profiles into runs whose members change all the time, among all machines. `rng` is a separate
    one, so that other runs do not change."""
    if not profile.faults or rng.random() >= CHANGING_MEMBERS:
        return profile
    # These count the machines that may fail among all of them.
    others = tuple(
        fault for fault in profile.faults if fault not in ("lose_disk", "return_disk", "flip_bits")
    )
    return replace(
        profile,
        nodes=profile.nodes + rng.randint(0, 2),
        spares=rng.randint(1, profile.nodes - 1),
        faults=(*others, *["change_members"] * max(2, len(others) // 2), "return_disk"),
        minority_gone=False,
    )


@dataclass(frozen=True)
class MemberSeries:
    """Changes of the members in all seeds of a run."""

    founders: int
    spares: int
    voter_counts: tuple[int, ...] = ()  # empty: random changes
    leader_leaves: float = 0.5
    loses: int = 1  # how often a member loses its disk, compared with two changes
    tiny_images: bool = False  # the log is purged all the time, and its images are installed


#: By the value of `--members`.
MEMBER_SERIES = {
    "3-5-3": MemberSeries(3, 3, (5, 3)),
    "1-3-1": MemberSeries(1, 3, (3, 1)),
    "leaders": MemberSeries(3, 2, (3,), leader_leaves=1.0),
    "lost": MemberSeries(3, 3, loses=4),
    "images": MemberSeries(3, 3, (5, 3), loses=3, tiny_images=True),
}


def with_member_series(rng: Random, profile: Profile, name: str) -> Profile:
    """Turn a profile into a run of MEMBER_SERIES[name]. `rng` is a separate one."""
    series = MEMBER_SERIES[name]
    others = tuple(
        fault for fault in profile.faults if fault not in ("lose_disk", "flip_bits") and rng.random() < 0.5
    )
    loses = ("lose_member", "return_disk") * series.loses if rng.random() < 0.8 else ()
    size = rng.choice((1024, 2048)) if series.tiny_images else profile.data_file_size
    tiny = RetentionLimits(max_bytes=size, hold_bytes=0, check_ms=20)
    return replace(
        profile,
        nodes=series.founders + series.spares,
        spares=series.spares,
        voter_counts=series.voter_counts,
        leader_leaves=series.leader_leaves,
        data_file_size=size,
        retention=tiny if series.tiny_images else profile.retention,
        fault_every_ms=min(profile.fault_every_ms, 250),
        faults=(*others, *["change_members"] * max(4, len(others)), *loses),
        plain_clients=1,  # fewer, so that a seed takes less time
        session_clients=1,
        readers=1,
        think_max_ms=max(profile.think_max_ms, 30),
        preferred_leaders=profile.preferred_leaders if rng.random() < 0.3 else (),
        minority_gone=False,
    )


def _with_patience(profile: Profile) -> Profile:
    """Set timeouts that allow progress for every client.

    With all sessions active, the queue ahead of a batch must drain within the timeout; otherwise a client
    without a session would never receive a response, however healthy the cluster. Each round trip includes
    syncs of the entries and of housekeeping.
    """
    entries = (profile.window * profile.session_clients + profile.plain_clients) * profile.max_batch
    round_trips = entries * (_ENTRY_OVERHEAD + profile.body_max_bytes) / profile.max_inflight_bytes
    drain_ms = int(round_trips * (2 * profile.delay_max_ms + _SYNCS_OF_A_ROUND * profile.fsync_max_ms))
    return replace(profile, request_timeout_ms=max(profile.request_timeout_ms, drain_ms))


def _with_bad_days(rng: Random, profile: Profile) -> Profile:
    files = rng.choice((None, None, 1, 2, 5))
    retention = RetentionLimits(
        max_bytes=None if files is None else files * profile.data_file_size,
        hold_bytes=rng.choice((0, 4 * profile.data_file_size, 1 << 30)),
        check_ms=rng.choice((20, 100, 500)),
    )
    days = tuple(day for day in BAD_DAYS if rng.random() < 0.4)
    profile = replace(
        profile,
        retention=retention,
        faults=profile.faults + days,
        timing=replace(profile.timing, fsync_stall_ms=rng.choice((300, 600, 4000))),
        stamp_every_ms=rng.choice((20, 1000)),
        scrub_every_ms=rng.choice((20, 100)) if "flip_bits" in days else 0,
        owned=rng.random() < 0.4,
    )
    slow_ms = rng.choice(SLOW_DISKS_MS) if rng.random() < SLOW_DISKS else 0
    profile = replace(profile, minority_gone=rng.random() < MINORITY_GONE)
    if not slow_ms:
        return profile
    # With syncs this long, the disk could not keep up with one sync per write.
    return replace(profile, fsync_min_ms=slow_ms, fsync_max_ms=slow_ms + profile.fsync_max_ms, own_sync=0.05)
