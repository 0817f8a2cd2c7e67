"""A simulated node as its owner uses it: the interface of `NodeServer` for programs, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from dledger.core.values import OwnerFitness
from dledger.errors import Code, DLedgerError, InvalidRequest, NotLeader, ReadFailed
from dledger.node.disk.body_reader import BodyReader
from dledger.node.role_events import RoleEvents, RoleListener
from dledger.replica.owned_append import Assigned, Fill
from dledger.replica.shell import AppendOutcome, RoleNotice
from dledger.store.format.batch import Body
from dledger.testing.checks.oracle import ClientAppend
from dledger.testing.virtual.event_loop import VirtualLoop
from dledger.testing.world import NodeLife

_READ_INDEX_MS = 1000  # timeout of a read-index request to the leader


class OwnedNode:
    """Implements the part of `NodeServer` that programs use, and behaves as documented there. The owner
    forwards `role_changed`.

    `pending_roles`: number of role changes that listeners have not processed yet.
    """

    def __init__(self, process: NodeLife, loop: VirtualLoop, rng: Random, append_timeout_ms: int) -> None:
        self.pending_roles = 0
        self._process = process
        self._loop = loop
        self._rng = rng
        self._append_timeout_ms = append_timeout_ms
        self._role_events = RoleEvents()
        self._role_events.listen(self._on_role_processed)
        self._bodies: BodyReader | None = None

    # -- for the owner

    def role_changed(self, notice: RoleNotice) -> None:
        self.pending_roles += 1
        self._role_events.announce(notice)

    # -- NodeServer

    def on_role(self, listener: RoleListener) -> None:
        self._role_events.listen(listener)

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout: float | None = None
    ) -> asyncio.Future[AppendOutcome]:
        future: asyncio.Future[AppendOutcome] = self._loop.create_future()
        append, oracle = ClientAppend([], None), self._process.sim.oracle

        def watched(assigned: Assigned) -> Sequence[Body]:
            bodies = fill(assigned)
            append.bodies = [bytes(body) for body in bodies]
            oracle.begin(append)
            return bodies

        def answered(answer: AppendOutcome | DLedgerError) -> None:
            oracle.answered(append, answer)
            if future.done():
                return
            if isinstance(answer, DLedgerError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        timeout_ms = self._append_timeout_ms if timeout is None else round(timeout * 1000)
        self._process.append_batch(sizes, watched, expected, answered, timeout_ms)
        return future

    @property
    def term(self) -> int:
        return self._process.replica.core.term

    @property
    def role_epoch(self) -> int:
        return self._process.replica.core.role_epoch

    @property
    def leader_id(self) -> str | None:
        return self._process.replica.core.leader_id

    @property
    def committed_index(self) -> int:
        return self._process.replica.core.committed_index

    @property
    def committed_pos(self) -> int:
        return self._process.replica.committed_pos

    @property
    def applied_index(self) -> int:
        return self._process.applier.applied_index

    @property
    def begin_pos(self) -> int:
        return self._process.store.base.pos

    @property
    def durable_index(self) -> int:
        return self._process.store.durable_index

    def keep_log_from(self, needed_from: Callable[[], int]) -> None:
        self._process.replica.retainer.needed_from = needed_from

    @property
    def wanted_begin_pos(self) -> int:
        return self._process.replica.retainer.wanted_pos

    def cluster_time_ms(self) -> int:
        process = self._process
        return process.replica.admission.state.clock.read(process.now_ms(), process.wall_ms())

    @property
    def steps_ms(self) -> int:
        return self._process.replica.admission.state.clock.steps_ms

    def report_fitness(self, *, lag_bytes: int, fit: bool) -> None:
        if lag_bytes < 0:
            raise InvalidRequest(f"lag_bytes is {lag_bytes}; it must not be negative")
        self._process.replica.owner = OwnerFitness(lag_bytes, fit)

    async def hand_over(self) -> bool:
        replica = self._process.replica
        leadership = replica.core.leadership
        to = (
            leadership.handing_over.peer_with_least_backlog(replica.owner) if leadership is not None else None
        )
        if to is None:
            return False
        await self.transfer(to)
        return True

    async def transfer(self, to: str | None) -> None:
        """Transfer leadership to a peer, or to any peer if it is None. Raises DLedgerError."""
        future: asyncio.Future[None] = self._loop.create_future()

        def ended(error: DLedgerError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._process.transfer(to, ended)
        await future

    async def wait_committed(self, index: int, timeout: float = 5.0) -> None:
        await self._process.readable.wait(index, round(timeout * 1000))

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int:
        if index is None:
            index = await self._read_index()
        await self._process.applier.wait(index, round(timeout * 1000))
        return index

    def read_bodies(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._reader.read(spans)

    def body_at(self, pos: int) -> bytes:
        return self._reader.read_at(pos)

    # -- inside

    def _on_role_processed(self, event: object) -> None:
        self.pending_roles -= 1

    @property
    def _reader(self) -> BodyReader:
        if self._bodies is None:
            process = self._process
            self._bodies = BodyReader(process.store, self._process.readable, process.suspect)
        return self._bodies

    async def _read_index(self) -> int:
        """Get a read index from the leader, over the network if that is another node."""
        process, sim = self._process, self._process.sim
        leader_id = self.leader_id
        if leader_id is None:
            raise NotLeader("no leader is known")
        future: asyncio.Future[int] = self._loop.create_future()

        def answered(answer: int | DLedgerError) -> None:
            if leader_id == process.node_id:
                process.after(0, lambda: settle(answer))
            elif not sim.network.is_cut(leader_id, process.node_id):
                sim.clock.after(sim.network.delay_ms(), lambda: process.post(lambda: settle(answer)))

        def settle(answer: int | DLedgerError) -> None:
            if future.done():
                return
            if isinstance(answer, DLedgerError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        def request() -> None:
            leader = sim.nodes[leader_id].process
            if leader is not None and not sim.network.is_cut(process.node_id, leader_id):
                target = leader
                target.post(lambda: target.read_index(answered))

        delay: Callable[[], int] = sim.network.delay_ms
        sim.clock.after(0 if leader_id == process.node_id else delay(), request)
        try:
            async with asyncio.timeout(_READ_INDEX_MS / 1000):
                return await future
        except TimeoutError:
            text = f"{leader_id} has not confirmed that it leads"
            raise ReadFailed(text, code=Code.READ_NOT_CONFIRMED) from None
