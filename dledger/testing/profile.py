"""What a simulated run is like: how bad its network, disks and clocks are, drawn from the seed.

Every seed switches on some faults and leaves others out: a run in which everything happens at once hardly
ever gets far enough to meet the rarer histories.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from dledger.core.values import Timing
from dledger.replica.retention import RetentionPolicy

#: The bad days: each is drawn alone, after all that is drawn for the others.
BAD_DAYS = ("lose_disk", "clock_jump", "full_disk", "failing_disk", "flip_bits")

#: In so many runs all disks are slow, and stay so: what each job takes at least.
SLOW_DISKS = 0.1
SLOW_DISKS_MS = (30, 75, 120)

#: In so many runs.
MINORITY_GONE = 0.4

KEEP_ALL = RetentionPolicy()

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
    """All that a seed decides before the run begins."""

    nodes: int = 3
    on_disk: bool = False  # DiskLogStore on SimDisk; otherwise the memory twin
    data_file_size: int = 4096  # small, so that files are rolled
    timing: Timing = SIM_TIMING
    fault_phase_ms: int = 8000
    fault_every_ms: int = 400  # on average
    faults: tuple[str, ...] = FAULTS
    minority_gone: bool = False  # before everything heals, a majority alone has to go on
    # network
    delay_min_ms: int = 0
    delay_max_ms: int = 4
    spike: float = 0.0  # fraction of messages that take up to spike_max_ms
    spike_max_ms: int = 200
    loss: float = 0.0
    duplication: float = 0.0
    keepalive_ms: int = 400  # after this long a silent stream is given up by those who wait for it
    late_delivery: float = 0.3  # of a broken stream: the chance that what was under way still arrives
    # disk
    fsync_min_ms: int = 0
    fsync_max_ms: int = 3
    own_sync: float = 0.3  # the chance that a write that waits does not share the sync of the one before it
    # nodes
    skew: float = 0.0  # clocks run at 1 +- skew
    tick_ms: int = 10
    preferred_leaders: tuple[str, ...] = ()
    max_push_bytes: int = 700  # small, so that pushes are cut
    max_inflight_bytes: int = 2000
    max_transfer_lag: int = 1000
    group_bytes: int = 1200
    cache_bytes: int = 4000  # small, so that followers that lag are served from the store
    checkpoint_every_ms: int = 300
    scrub_every_ms: int = 0  # some KiB so often; 0: never
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
    retention: RetentionPolicy = KEEP_ALL
    request_timeout_ms: int = 500

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(self.nodes))


#: What an entry takes in a push beside its body, about.
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
    """The profile of a seed. `nodes` and `on_disk`, if given, overrule what would be drawn."""
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
        # Fewer than there are clients, and their sessions would evict each other for ever.
        max_sessions=rng.choice((sessions + 1, 50)),
    )
    return _with_patience(_with_bad_days(rng, profile))


def _with_patience(profile: Profile) -> Profile:
    """Time-outs that everybody can live with: with all sessions at work, the queue in front of a batch has to
    drain within them, or a client without a session never sees an answer, however healthy the cluster is.
    For each round trip disks have a sync under way, that of the entries, and some of housekeeping."""
    entries = (profile.window * profile.session_clients + profile.plain_clients) * profile.max_batch
    round_trips = entries * (_ENTRY_OVERHEAD + profile.body_max_bytes) / profile.max_inflight_bytes
    drain_ms = int(round_trips * (2 * profile.delay_max_ms + _SYNCS_OF_A_ROUND * profile.fsync_max_ms))
    return replace(profile, request_timeout_ms=max(profile.request_timeout_ms, drain_ms))


def _with_bad_days(rng: Random, profile: Profile) -> Profile:
    files = rng.choice((None, None, 1, 2, 5))
    retention = RetentionPolicy(
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
    # Where each sync is that long, too many of them would be more than the disk can do.
    return replace(profile, fsync_min_ms=slow_ms, fsync_max_ms=slow_ms + profile.fsync_max_ms, own_sync=0.05)
