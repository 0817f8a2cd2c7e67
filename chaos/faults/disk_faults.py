"""Disk and clock faults. They implement `chaos.faults.faults.Fault`; the evidence is in the nodes'
counters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chaos.cluster.cluster import ChaosCluster, started
from chaos.cluster.copies import plan_flips
from chaos.faults.faults import Effect, Kill, all_answer, pid_facts, until
from chaos.injection.disk import used_bytes
from chaos.injection.orders import FaultOrders, InjectedEffect
from dledger.client import AsyncClient
from dledger.errors import DLedgerError
from dledger.store.offline.inspect import list_entries

#: Exit of a node whose disk has failed (docs/operations.md).
_DISK_FAILED = "failed (exit code 74)"
_STUCK = FaultOrders(stuck=True)
#: Shorter than the hang after which a leader steps down.
SYNCS_WITHIN_S = 1.0
#: A node reserves about as much as a recent burst used, and filling it takes long on a slow machine.
_FULL_WITHIN_S = 120.0
_REPAIRED_WITHIN_S = 120.0
#: The last entries are not damaged: a log end without its index records looks like a torn write.
_MARGIN = 64


class HeldUpDisk:
    """Slows syncs by `slow_ms` or, if that is 0, blocks them until the end of the fault."""

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str], *, slow_ms: int = 0) -> None:
        self.kind = "slow_disk" if slow_ms else "stuck_disk"
        self.targets = targets
        self._cluster = cluster
        self._orders = FaultOrders(slow_ms=slow_ms, stuck=not slow_ms)
        self._did = InjectedEffect.SLOW_SYNC if slow_ms else InjectedEffect.STUCK_SYNC

    async def begin(self) -> Effect:
        self._before = {target: self._count(target) for target in self.targets}
        for target in self.targets:
            self._cluster.injections.add(target, self._orders)
        alive = await asyncio.to_thread(_all_alive, self._cluster, self.targets)
        return Effect(alive)

    async def end(self) -> Effect:
        alive = await asyncio.to_thread(_all_alive, self._cluster, self.targets)
        held = {target: self._count(target) - self._before[target] for target in self.targets}
        for target in self.targets:
            self._cluster.injections.remove(target, self._orders)
        # A node killed by another fault meanwhile had a slow disk until then, but not a blocked one until the
        # end.
        happened = all(held.values()) and (alive or self._did is InjectedEffect.SLOW_SYNC)
        return Effect(happened, {f"syncs.{node}": count for node, count in held.items()})

    def _count(self, target: str) -> int:
        return self._cluster.injections.count([target], self._did)


class FullDisk:
    """Limits each disk to its current usage until the end of the fault.

    The fault took effect if a majority of the targets reported a full disk. After that, no commit can use up
    the remaining space of the others.
    """

    kind = "full_disk"

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str]) -> None:
        self.targets = targets
        self._cluster = cluster
        self._orders: dict[str, FaultOrders] = {}

    async def begin(self) -> Effect:
        used = {t: await asyncio.to_thread(used_bytes, self._store(t)) for t in self.targets}
        self._orders = {target: FaultOrders(quota_bytes=quota) for target, quota in used.items()}
        for target, orders in self._orders.items():
            self._cluster.injections.add(target, orders)
        # Space that was reserved earlier is used up first.
        most = len(self.targets) // 2 + 1
        happened = await until(lambda: len(self._full()) >= most, _FULL_WITHIN_S)
        return Effect(
            happened, {"full": ",".join(self._full()), **{f"bytes.{n}": b for n, b in used.items()}}
        )

    async def end(self) -> Effect:
        for target, orders in self._orders.items():
            self._cluster.injections.remove(target, orders)
        has_room = await until(lambda: all(self._has_no_room(t) is False for t in self.targets))
        return Effect(True, {"has_room": int(has_room)})

    def _full(self) -> list[str]:
        return [target for target in self.targets if self._has_no_room(target)]

    def _has_no_room(self, target: str) -> bool | None:
        """Return whether the node reports a full disk, or None if it does not answer."""
        status = self._cluster.local.node_status(target)
        return None if status is None else status.no_room

    def _store(self, target: str) -> Path:
        return self._cluster.local.store_directory(target)


class FailingDisk:
    """Makes writes or syncs fail until the node has exited. At the end, repairs the disk and
    restarts the node."""

    def __init__(self, cluster: ChaosCluster, kind: str, targets: Sequence[str]) -> None:
        self.kind = kind
        self.targets = targets
        self._cluster = cluster
        fails_writes = kind == "write_error"
        self._orders = FaultOrders(write_error=fails_writes, sync_error=not fails_writes)
        self._did = InjectedEffect.WRITE_ERROR if fails_writes else InjectedEffect.SYNC_ERROR

    async def begin(self) -> Effect:
        before = self._cluster.injections.count(self.targets, self._did)
        alive = await asyncio.to_thread(_all_alive, self._cluster, self.targets)
        for target in self.targets:
            self._cluster.injections.add(target, self._orders)
        ended = alive and await until(lambda: not any(map(self._is_alive, self.targets)))
        ends = {target: await asyncio.to_thread(self._why_down, target) for target in self.targets}
        errors = self._cluster.injections.count(self.targets, self._did) - before
        happened = ended and errors >= len(self.targets) and set(ends.values()) == {_DISK_FAILED}
        return Effect(happened, {"errors": errors, **{f"end.{node}": why for node, why in ends.items()}})

    async def end(self) -> Effect:
        for target in self.targets:
            self._cluster.injections.remove(target, self._orders)
        down = [target for target in self.targets if not await asyncio.to_thread(self._is_alive, target)]
        pids = {t: await started(self._cluster.local.start_node, t) for t in down}
        answered = await all_answer(self._cluster.local, self.targets)
        return Effect(down == list(self.targets), {**pid_facts(pids), "answered": int(answered)})

    def _is_alive(self, target: str) -> bool:
        return self._cluster.local.process(target).is_alive

    def _why_down(self, target: str) -> str:
        return self._cluster.local.process(target).why_down()


class PowerLoss(Kill):
    """Kills all targets at once and drops all or part of the writes that no completed sync covers.

    The fault took effect if a change was undone. To ensure that, it first blocks each target's disk, and
    kills the targets once each has a sync in flight or `SYNCS_WITHIN_S` has passed.
    """

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str], rng: Random) -> None:
        super().__init__(cluster, targets)
        self.kind = "power_loss"
        self._rng = rng

    async def begin(self) -> Effect:
        before = {target: self._syncs(target) for target in self.targets}
        for target in self.targets:
            self._chaos.injections.add(target, _STUCK)
        try:
            await until(
                lambda: not any(self._is_idle(target, count) for target, count in before.items()),
                SYNCS_WITHIN_S,
            )
            killed = await super().begin()
        finally:
            for target in self.targets:
                self._chaos.injections.remove(target, _STUCK)
        facts, lost = dict(killed.facts), 0
        for target in self.targets:
            loss = await asyncio.to_thread(self._chaos.injections.lose_power, target, self._rng)
            facts |= {f"undone.{target}": loss.undone, f"lost_bytes.{target}": loss.lost_bytes}
            lost += loss.undone
        return Effect(killed.happened and lost > 0, facts)

    def _is_idle(self, target: str, before: int) -> bool:
        """Return True if the target runs and has started no sync."""
        return self._cluster.process(target).is_alive and self._syncs(target) == before

    def _syncs(self, target: str) -> int:
        """Return the number of blocked syncs."""
        return self._chaos.injections.count([target], InjectedEffect.STUCK_SYNC)


@dataclass(slots=True)
class _Flip:
    """One damaged byte of an entry on a node, with its original value."""

    node: str
    index: int
    path: Path
    offset: int
    good: int

    @property
    def is_repaired(self) -> bool:
        return _read_byte(self.path, self.offset) == self.good


class BitFlip:
    """Flips a bit in some entries of each target that are durable on all nodes.

    At the end the targets are scrubbed. The fault took effect if the scrub or an earlier read found the
    damage and it was repaired.
    """

    kind = "bit_flip"

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str], entries: int, rng: Random) -> None:
        self.targets = targets
        self._cluster = cluster
        self._entries = entries
        self._rng = rng
        self._flips: list[_Flip] = []
        self._found_before = 0

    async def begin(self) -> Effect:
        seen = await self._cluster.statuses()
        if len(seen) < len(self._cluster.node_ids):
            return Effect(False, {"error": f"only {' '.join(seen)} report their durable index"})
        self._found_before = sum(seen[target].scrub_found for target in self.targets)
        first = max(status.ledger_begin_index for status in seen.values())
        last = min(min(status.durable_index, status.committed_index) for status in seen.values())
        known = range(max(0, first), max(0, last - _MARGIN))
        plan = plan_flips(self._cluster.copies, self.targets, known, self._entries, self._rng)
        for node, index in plan:
            flip = await asyncio.to_thread(self._flip, node, index)
            if flip is None:
                self._cluster.copies.repaired(node, index)
            else:
                self._flips.append(flip)
        flipped = {flip.node for flip in self._flips if not flip.is_repaired}
        return Effect(flipped == set(self.targets), {"entries": self._names()})

    async def end(self) -> Effect:
        try:
            local = self._cluster.local
            async with AsyncClient(local.addresses, group=local.plan.group, tls=local.tls_files) as client:
                for target in self.targets:
                    address = self._cluster.local.plan.node(target).address
                    async with aclosing(client.scrub(address)) as steps:
                        async for _ in steps:
                            pass
        except DLedgerError as error:
            return Effect(False, {"error": error.message})
        repaired = await until(lambda: all(flip.is_repaired for flip in self._flips), _REPAIRED_WITHIN_S)
        for flip in self._flips:
            if flip.is_repaired:
                self._cluster.copies.repaired(flip.node, flip.index)
        seen = await self._cluster.statuses()
        found = sum(seen[t].scrub_found for t in self.targets if t in seen) - self._found_before
        return Effect(repaired and found > 0, {"found": found, "flips": len(self._flips)})

    def _names(self) -> str:
        return ",".join(f"{flip.node}:{flip.index}" for flip in self._flips)

    def _flip(self, node: str, index: int) -> _Flip | None:
        """Flip a bit. Returns None if the entry is not at its expected position."""
        store = self._cluster.local.store_directory(node)
        entry = next((e for e in list_entries(store, index, index) if e.index == index), None)
        if entry is None:
            return None
        size = self._cluster.data_file_size
        pos = entry.pos + self._rng.randrange(entry.size)
        path, offset = store / "data" / f"{pos - pos % size:020d}", pos % size
        good = _read_byte(path, offset)
        self._cluster.injections.note_damage(node, entry.pos, entry.pos + entry.size)
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), bytes([good ^ 1 << self._rng.randrange(8)]), offset)
        return _Flip(node, index, path, offset, good)


class ClockJump:
    """Moves the wall clock by `jump_ms`, and moves it back at the end. The fault took effect if the node read
    the wrong time."""

    kind = "clock_jump"

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str], jump_ms: int) -> None:
        self.targets = targets
        self._cluster = cluster
        self._jump_ms = jump_ms

    async def begin(self) -> Effect:
        self._before = await self._offsets()
        self._reads_before = {target: self._reads(target) for target in self.targets}
        for target in self.targets:
            self._cluster.injections.add(target, FaultOrders(clock_ms=self._jump_ms))
        reported = await until(lambda: all(map(self._has_jumped, self.targets)))
        return Effect(all(map(self._has_read_it, self.targets)), {"reported": int(reported)})

    async def end(self) -> Effect:
        after = await self._offsets()
        happened = all(map(self._has_read_it, self.targets))
        for target in self.targets:
            self._cluster.injections.remove(target, FaultOrders(clock_ms=self._jump_ms))
        facts = {f"offset_ms.{node}": after[node] - self._before.get(node, 0) for node in after}
        return Effect(happened, {**facts})

    async def _offsets(self) -> dict[str, int]:
        """Return the clock offsets that the targets report."""
        seen = await self._cluster.statuses()
        return {node: seen[node].clock_offset_ms for node in self.targets if node in seen}

    def _has_jumped(self, target: str) -> bool:
        """Return True if the reported offset moved by the jump, give or take half of the jump. It may move by
        less than the jump, because cluster time follows the clocks."""
        status = self._cluster.local.node_status(target)
        off = 0 if status is None else status.clock_offset_ms - self._before.get(target, 0)
        return abs(off - self._jump_ms) < abs(self._jump_ms) / 2

    def _has_read_it(self, target: str) -> bool:
        return self._reads(target) > self._reads_before[target]

    def _reads(self, target: str) -> int:
        """Return how often the target has read a wrong time."""
        return self._cluster.injections.count([target], InjectedEffect.WRONG_TIME)


def _all_alive(cluster: ChaosCluster, targets: Sequence[str]) -> bool:
    return all(cluster.local.process(target).is_alive for target in targets)


def _read_byte(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return os.pread(file.fileno(), 1, offset)[0]
