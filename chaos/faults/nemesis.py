"""Begins and ends the faults of a plan, and writes down what came of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from chaos.cluster.cluster import ChaosCluster
from chaos.faults.aiming import Aimed, aim
from chaos.faults.faults import Effect
from chaos.plans.scenario import TAKING, FaultStep, Occurrence
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from dledger.errors import DLedgerError


@dataclass(slots=True)
class Done:
    """One fault that was begun. Times: monotonic ns, `ended` 0 while it is in force. `old_term`: when it
    began, of the leader; `new_term`: after it had been unseated, -1: it was not."""

    occurrence: Occurrence
    began: int
    targets: Sequence[str] = ()
    ended: int = 0
    old_term: int = -1
    new_term: int = -1
    failures: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        step = self.occurrence.step
        return f"{step.kind} {step.target} ({','.join(self.targets) or 'nobody'})"


class Nemesis:
    """`on_change`: called when a fault has begun or ended."""

    def __init__(
        self,
        cluster: ChaosCluster,
        writer: TraceWriter,
        rng: Random,
        on_change: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._rng = rng
        self._on_change = on_change
        self._hurt: set[str] = set()
        #: By step: where a machine is slow, the next time waits for the end of the one before, and then as
        #: long as was planned between them. What has just come back would have nothing to lose.
        self._turns: dict[FaultStep, asyncio.Lock] = {}
        self._rested: dict[FaultStep, float] = {}
        self.done: list[Done] = []

    @property
    def in_force(self) -> list[str]:
        return [done.name for done in self.done if not done.ended]

    async def run(self, plan: Sequence[Occurrence]) -> None:
        """All of them, each at its time from now on; those that overlap, beside each other."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for occurrence in plan:
                group.create_task(self._one(occurrence, began + occurrence.at))

    async def _one(self, occurrence: Occurrence, when: float) -> None:
        loop, step = asyncio.get_running_loop(), occurrence.step
        await asyncio.sleep(max(0.0, when - loop.time()))
        async with self._turns.setdefault(step, asyncio.Lock()):
            await asyncio.sleep(max(0.0, self._rested.get(step, 0.0) - loop.time()))
            await self._begin(occurrence)
            self._rested[step] = loop.time() + step.every - step.lasts

    async def _begin(self, occurrence: Occurrence) -> None:
        done = Done(occurrence, self._writer.now())
        self.done.append(done)
        step = occurrence.step
        try:
            aimed = await aim(self._cluster, step, self._rng, sorted(self._hurt))
        except DLedgerError as error:
            self._note_begin(done, Effect(False, {"error": error.message}))
            self._note_end(done, Effect(False))
            return
        taken = set(aimed.fault.targets) if step.kind in TAKING else set()
        self._hurt |= taken
        try:
            await self._carry_out(done, aimed, step)
        finally:
            self._hurt -= taken

    async def _carry_out(self, done: Done, aimed: Aimed, step: FaultStep) -> None:
        loop = asyncio.get_running_loop()
        done.targets = aimed.fault.targets
        done.old_term = aimed.leader.term if aimed.leader else -1
        done.began = self._writer.now()
        over = loop.time() + step.lasts
        effect = await aimed.fault.begin()
        facts = dict(effect.facts)
        if aimed.leader is not None:
            facts |= {"leader": aimed.leader.node_id, "term": aimed.leader.term}
        self._note_begin(done, Effect(effect.happened, facts))
        if effect.told:
            self._writer.write(Ev.META, effect.told, at=effect.told_at)
        if step.unseats_leader and step.target == "leader":
            await self._await_successor(done, over)
        await asyncio.sleep(max(0.0, over - loop.time()))
        try:
            ended = await aimed.fault.end()
        except DLedgerError as error:
            ended = Effect(False, {"error": error.message})
        if step.unseats_leader and done.new_term < 0:
            await self._await_successor(done, loop.time() + 10)
        self._note_end(done, ended)

    async def _await_successor(self, done: Done, until: float) -> None:
        seconds = until - asyncio.get_running_loop().time()
        try:
            after = await self._cluster.wait_leadership(max(0.1, seconds), after_term=done.old_term)
        except DLedgerError:
            return
        done.new_term = after.term

    def _note_begin(self, done: Done, effect: Effect) -> None:
        step = done.occurrence.step
        if not effect.happened:
            done.failures.append(f"did not begin: {_facts(effect)}")
        self._writer.write(
            Ev.FAULT,
            {
                "e": "begin",
                "fault": done.occurrence.number,
                "f": step.kind,
                "targets": ",".join(done.targets),
                "aim": step.target,
                "params": step.model_dump_json(exclude_defaults=True),
                "effective": effect.happened,
                "evidence": _facts(effect),
            },
            at=done.began,
        )
        self._writer.flush()
        self._on_change(f"{done.name} began" if effect.happened else f"{done.name} DID NOT BEGIN")

    def _note_end(self, done: Done, effect: Effect) -> None:
        done.ended = self._writer.now()
        if not effect.happened:
            done.failures.append(f"did not happen: {_facts(effect)}")
        self._writer.write(
            Ev.FAULT,
            {
                "e": "end",
                "fault": done.occurrence.number,
                "f": done.occurrence.step.kind,
                "targets": ",".join(done.targets),
                "effective": effect.happened,
                "evidence": _facts(effect),
            },
        )
        self._writer.flush()
        self._on_change(f"{done.name} ended" if effect.happened else f"{done.name} DID NOT HAPPEN")


def _facts(effect: Effect) -> str:
    return " ".join(f"{key}={value}" for key, value in effect.facts.items())
