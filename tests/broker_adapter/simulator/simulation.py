"""A simulated cluster with a broker on every node, its clients around it, and what they all were told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TextIO, TypeVar, cast

from broker_adapter.errors import BrokerError
from dledger import DLedgerError
from dledger.testing import CrashKind, Profile, Simulation, Violation
from dledger.testing.durable import CheckedFeeder
from dledger.testing.run import SimNemesis
from dledger.testing.virtual.event_loop import VirtualLoop, virtual_loop
from dledger.testing.virtual.sim_disk import CrashPoint
from dledger.testing.world import NodeLife
from tests.broker_adapter.simulator.broker_node import SimBroker
from tests.broker_adapter.simulator.derived import DerivedFiles
from tests.broker_adapter.simulator.truth import LogTruth

T = TypeVar("T")

#: What became of an answer at a broker: the broker, the answer, and whether it has reached the client.
PassedOn = Callable[[SimBroker, T, bool], None]
#: How often the node that passes an answer on gets to know what became of it.
_PASSING_KNOWN = 0.8


class NoAnswer(Exception):
    """The node is down, or the request or its answer was lost or late: nobody knows."""


class BrokerSimulation(Simulation):
    """`ask` is the network between clients and brokers; `client_loop` is where clients run."""

    def __init__(self, profile: Profile, *, seed: int = 0, sink: TextIO | None = None) -> None:
        self.truth = LogTruth()
        self.answer_loss = (
            0.0  # of answers to clients, beside what the network loses: it was done all the same
        )
        self._opened: dict[int, tuple[str, int]] = {}  # by term: node and role_epoch of the writable broker
        super().__init__(profile, seed=seed, sink=sink)
        self.client_rng = self.seeds.random_for("clients")
        self.client_loop = virtual_loop(self.clock.after, lambda: self.clock.now_ms, self.client_rng)

    # -- Simulation

    def loops(self) -> list[VirtualLoop]:
        return [*super().loops(), self.client_loop]

    def new_files(self) -> DerivedFiles:
        return DerivedFiles()

    def new_judge(self) -> LogTruth:
        return self.truth

    def new_owner(self, process: NodeLife) -> SimBroker:
        files = self.nodes[process.node_id].files
        assert isinstance(files, DerivedFiles)
        rng = self.seeds.random_for(f"{process.node_id} broker")
        return SimBroker(process, files, rng, partial(self.master_opened, process.node_id))

    def new_feeder(self, process: NodeLife, rng: Random) -> CheckedFeeder:
        return CheckedFeeder(process, owner_of(process).machine, self.truth, rng)

    def stop(self, node_id: str, done: Callable[[], None] | None = None) -> None:
        """The broker stops first."""
        process = self.process(node_id)

        def stopped() -> None:
            if process.alive:
                super_stop(node_id, done)

        super_stop = super().stop
        process.post(lambda: owner_of(process).stop(lambda: self.clock.after(0, stopped)))

    # -- brokers

    def brokers(self) -> list[SimBroker]:
        """Of all processes that run."""
        return [owner_of(process) for process in self.processes()]

    def broker(self, node_id: str) -> SimBroker | None:
        process = self.nodes[node_id].process
        return None if process is None else owner_of(process)

    def writable(self) -> list[SimBroker]:
        return [broker for broker in self.brokers() if broker.is_writable]

    def master_opened(self, node_id: str, pair: tuple[int, int]) -> None:
        """A broker takes writes under (term, role_epoch): the only one that ever does, in this term."""
        term, role_epoch = pair
        first = self._opened.setdefault(term, (node_id, role_epoch))
        if first != (node_id, role_epoch):
            raise Violation("writable master", f"{node_id} for {pair}, and before it {first} in that term")

    @property
    def masterships(self) -> int:
        return len(self._opened)

    # -- clients

    async def ask(
        self,
        node_id: str,
        request: Callable[[SimBroker], Awaitable[T]],
        timeout_ms: int,
        passed_on: PassedOn[T] | None = None,
    ) -> T:
        """A request to the broker of a node, on the client loop. Errors of the broker; NoAnswer.

        `passed_on` is called at the broker with its answer when that is known to have reached the client, or
        known not to; an answer may also be lost without anybody knowing."""
        rng, network = self.client_rng, self.network
        future: asyncio.Future[T] = self.client_loop.create_future()
        serving: list[asyncio.Task[T]] = []

        def arrive() -> None:
            process = self.nodes[node_id].process
            if process is None:
                _settle(future, None, NoAnswer(f"{node_id} is down"))
            elif rng.random() >= network.loss:
                process.post(lambda: serve(owner_of(process)))

        def serve(broker: SimBroker) -> None:
            if not broker.process.alive:
                return

            async def served() -> T:
                return await request(broker)

            task = broker.loop.create_task(served())
            serving.append(task)
            task.add_done_callback(lambda task: leaves(broker, task))

        def leaves(broker: SimBroker, task: asyncio.Task[T]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            result = None if error is not None else task.result()
            if rng.random() < network.loss or rng.random() < self.answer_loss:
                self._tell_fate(passed_on, broker, result, error, False)
                return
            self.clock.after(network.delay_ms(), lambda: arrives(broker, result, error))

        def arrives(broker: SimBroker, result: T | None, error: BaseException | None) -> None:
            is_in_time = not future.done()
            _settle(future, result, error)
            self._tell_fate(passed_on, broker, result, error, is_in_time)

        def give_up() -> None:
            """As gRPC does: the server hears that nobody waits, if it is lucky."""
            if serving and rng.random() < 0.5:
                serving[0].cancel()

        self.clock.after(network.delay_ms(), arrive)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            process = self.nodes[node_id].process
            if process is not None:
                process.after(network.delay_ms(), give_up)
            raise NoAnswer(f"nothing from {node_id} in {timeout_ms} ms") from None

    def _tell_fate(
        self,
        passed_on: PassedOn[T] | None,
        broker: SimBroker,
        result: T | None,
        error: BaseException | None,
        reached: bool,
    ) -> None:
        """Of an answer, to the broker that gave it, if that is ever known there."""
        if passed_on is None or error is not None or self.client_rng.random() >= _PASSING_KNOWN:
            return
        told = partial(passed_on, broker, cast(T, result), reached)

        def tell() -> None:
            broker.loop.call_soon(told)

        broker.process.after(self.network.delay_ms(), tell)

    def count(self, what: str, error: Exception) -> None:
        """Note how a request of a client failed."""
        if isinstance(error, BrokerError):
            self.counts[f"{what}: {error.status.name}"] += 1
        elif isinstance(error, DLedgerError):
            self.counts[f"{what}: log says {error.code.name}"] += 1
        else:
            self.counts[f"{what}: no answer"] += 1


class BrokerNemesis(SimNemesis):
    """Breaks what brokers have, too."""

    def __init__(self, sim: BrokerSimulation, rng: Random) -> None:
        super().__init__(sim, rng)
        self._faults["crash_in_derived_files"] = self._crash_in_derived_files

    def _crash_in_derived_files(self) -> None:
        node = self.sim.nodes[self._node()]
        assert isinstance(node.files, DerivedFiles)
        node.crash_kind = self.rng.choice((CrashKind.PROCESS, CrashKind.POWER))
        node.restart_after_ms = self._duration_ms()
        node.files.crash_within(self.rng.randint(1, 40), self.rng.choice(tuple(CrashPoint)))


def owner_of(process: NodeLife) -> SimBroker:
    """The broker that owns a process."""
    assert isinstance(process.owner, SimBroker)
    return process.owner


def _settle(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(cast(T, result))
    else:
        future.set_exception(error)
