"""One seed, from start to verdict: faults and clients, then healing, then the checks of the end."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TextIO

from dledger.replica.replica import Replica
from dledger.testing.clients import PlainClient, Reader, SessionClient
from dledger.testing.durable import MakeMachine
from dledger.testing.nemesis import Nemesis
from dledger.testing.profile import Profile, draw_profile
from dledger.testing.simulator import Simulation
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import StateMachine

TRACE_LINES = 60
#: After healing, everything has so many election time-outs, or time-outs of clients, or syncs.
_ELECTIONS = 40
_REQUESTS = 5
_SYNCS = 160


@dataclass
class RunResult:
    """What a run did, and `failure`, the text of what went wrong, if anything did."""

    seed: int
    profile: Profile
    virtual_ms: int = 0
    steps: int = 0
    heal_ms: int = 0  # from the end of the faults until all logs were equal
    counts: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    rule: str | None = None  # of the violation


@dataclass(frozen=True)
class RunOptions:
    """What may be overruled of what a seed decides."""

    nodes: int | None = None
    on_disk: bool | None = None
    profile: Profile | None = None
    replica_type: type[Replica] = Replica
    state_machine: Callable[[], StateMachine] | None = None
    durable_machine: MakeMachine | None = None


_DEFAULTS = RunOptions()


def run_seed(seed: int, options: RunOptions = _DEFAULTS, *, sink: TextIO | None = None) -> RunResult:
    """Run one seed to its verdict. Never raises for what the run finds: that is in `failure`."""
    profile = options.profile or draw_profile(Random(f"profile {seed}"), options.nodes, options.on_disk)
    simulation = Simulation(
        profile,
        seed=seed,
        sink=sink,
        replica_type=options.replica_type,
        state_machine=options.state_machine,
        durable_machine=options.durable_machine,
    )
    result = RunResult(seed, profile)
    try:
        _drive(simulation, result)
    except Exception as error:  # whatever a replica raises is a finding about this seed
        result.rule = error.rule if isinstance(error, Violation) else type(error).__name__
        result.failure = _report(simulation, options, error)
    simulation.close()
    result.virtual_ms = simulation.clock.now_ms
    result.steps = simulation.clock.steps
    result.counts = simulation.counts
    result.counts["batches indeterminate"] = simulation.oracle.indeterminate
    result.counts["batches acknowledged"] = len(simulation.oracle.acknowledged)
    return result


def settle_ms(profile: Profile) -> int:
    """After healing: the bound of a leader, of progress for every client, of equal logs."""
    return max(
        _ELECTIONS * profile.timing.election_max_ms,
        _REQUESTS * profile.request_timeout_ms,
        _SYNCS * profile.fsync_max_ms,
    )


def _drive(sim: Simulation, result: RunResult) -> None:
    profile = sim.profile
    writers: list[PlainClient | SessionClient] = [
        PlainClient(sim, f"p{i}", sim.seeds.take(f"plain {i}")) for i in range(profile.plain_clients)
    ]
    sessions = [
        SessionClient(sim, f"s{i}", sim.seeds.take(f"session {i}")) for i in range(profile.session_clients)
    ]
    writers += sessions
    readers = [Reader(sim, f"r{i}", sim.seeds.take(f"reader {i}")) for i in range(profile.readers)]
    nemesis = Nemesis(sim, sim.seeds.take("nemesis"))
    sim.start()
    for client in (*writers, *readers):
        client.start()
    nemesis.start()
    sim.run_for(profile.fault_phase_ms)
    nemesis.is_stopped = True
    sim.trace.add(sim.clock.now_ms, "--", "healing")
    everybody: list[_Client] = [*writers, *readers, *([sim.owned] if profile.owned else [])]
    limit_ms = settle_ms(profile)
    if profile.minority_gone:
        sim.remove_minority(sim.seeds.take("gone"))
        sim.heal()
        _await_progress(sim, everybody, limit_ms)
        sim.gone.clear()
    healed_ms = sim.clock.now_ms
    sim.heal()
    _await_progress(sim, everybody, limit_ms)
    for each in everybody:
        each.is_stopped = True
    sim.run_until(
        lambda: sim.is_settled() and all(s.is_settled for s in sessions),
        limit_ms=limit_ms,
    )
    if sim.counts["bits flipped"]:
        _repair_all(sim, limit_ms)
    result.heal_ms = sim.clock.now_ms - healed_ms
    check_end(sim)


class _Client(Protocol):
    completed: int
    is_stopped: bool


def _await_progress(sim: Simulation, everybody: Sequence[_Client], limit_ms: int) -> None:
    """Each of the clients gets something done, in bounded time."""
    before = [each.completed for each in everybody]
    sim.run_until(
        lambda: all(each.completed > n for each, n in zip(everybody, before, strict=True)), limit_ms=limit_ms
    )


def _repair_all(sim: Simulation, limit_ms: int) -> None:
    """Everything that is stored is read once, and what is damaged is repaired in bounded time."""
    begin_ms = sim.clock.now_ms
    while not sim.bit_flips.check_all_repaired():
        if sim.clock.now_ms - begin_ms > limit_ms:
            damages = {p.node_id: p.store.damages for p in sim.processes()}
            raise Violation("damage", f"not repaired within {limit_ms} ms: {damages}; {sim.summary()}")
        sim.run_for(100)
        sim.run_until(sim.is_settled, limit_ms=limit_ms)


def check_end(sim: Simulation) -> None:
    """All logs equal, and every acknowledged entry present where it was acknowledged, in order."""
    logs = [mirror.view for mirror in sim.invariants.mirrors.values()]
    reference = sim.invariants.committed
    for mirror in sim.invariants.mirrors.values():
        begin = mirror.view.base.index
        if begin >= 0:
            sim.invariants.housekeeping.check_base(mirror.node_id, mirror.view.base)
        ends = [(b.last_index, b.term, b.chain_crc) for b in mirror.view.batches]
        kept = reference.ending_in(begin, reference.end_index)
        if ends != [(b.last_index, b.term, b.chain_crc) for b in kept]:
            raise Violation(
                "all logs equal", f"{mirror.node_id} ends at {mirror.view.end_index}: {sim.summary()}"
            )
    assert all(log.end_index == reference.end_index for log in logs)
    sim.oracle.check_final()
    tables = {p.node_id: p.replica.admission.sessions.encode_committed() for p in sim.processes()}
    if len(set(tables.values())) > 1:
        raise Violation("sessions", f"after the same log the session tables differ: {sim.summary()}")
    digests = [p.machine.digest() for p in sim.processes() if p.machine is not None]
    if any(digest != digests[0] for digest in digests):
        raise Violation("state machines equal", f"digests after the same log: {digests}")


def _report(sim: Simulation, options: RunOptions, error: Exception) -> str:
    command = f"python -m dledger.testing --seeds 1 --first {sim.seed}"
    if options.nodes is not None:
        command += f" --nodes {options.nodes}"
    return "\n".join(
        [
            f"seed {sim.seed} failed at {sim.clock.now_ms} ms: {type(error).__name__}: {error}",
            *(() if isinstance(error, Violation) else traceback.format_exception(error)[-8:]),
            f"profile: {sim.profile}",
            f"nodes: {sim.summary()}",
            f"the last {TRACE_LINES} events:",
            *sim.trace.tail(TRACE_LINES),
            f"seed {sim.seed}: {error}",
            f"again with: {command} --trace trace.txt",
        ]
    )
