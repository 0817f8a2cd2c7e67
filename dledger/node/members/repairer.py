"""Damage: found by any read or by the scrub, repaired in place from any other member.

Rule 10 of docs/guarantees.md.

Nothing is cut and nothing is guessed: a range is only ever replaced by entries that chain from the good one
before it to the good one after it. Until then reads of the range fail, and this node does not lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from random import Random
from typing import Protocol

from dledger.errors import Code, DLedgerError, InvalidRequest, StorageError
from dledger.logs import get_logger
from dledger.node.disk.disk_jobs import HARMLESS
from dledger.node.loop.pacing import Pace
from dledger.node.loop.threads import InThread, in_thread
from dledger.rpc.peer_transport import PeerUnreachable
from dledger.rpc.ports import FetchedFrames
from dledger.store.api import Damage, Frames, LogStore, RepairWork

_log = get_logger("repair")

_FETCH_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
_PAUSE_MIN_S = 0.2
_PAUSE_MAX_S = 30.0
_PAUSE_URGENT_S = 1.0  # the longest while others wait for this node: it may not lead before


class Source(Protocol):
    """A member that may have good entries."""

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        """Whole batches from first_index on: as many as one piece holds."""


class RepairableStore(Protocol):
    """What a Repairer needs of a LogStore."""

    @property
    def damages(self) -> Sequence[Damage]: ...

    def note_damage(self, index: int) -> Damage | None: ...
    def begin_repair(self, damage: Damage) -> RepairWork: ...


class Repairer:
    """All methods on the loop; what writes goes to the disk thread by `call`."""

    def __init__(
        self,
        store: RepairableStore,
        sources: Mapping[str, Source],
        call: Callable[[Callable[[], object]], Future[object]],
        *,
        on_fatal: Callable[[DLedgerError], None],
        on_purged: Callable[[int], None],
        is_urgent: Callable[[], bool],
        bytes_per_second: int,
        longest_pause_s: float = _PAUSE_MAX_S,
        rng: Random | None = None,
        in_thread: InThread = in_thread,
    ) -> None:
        """bytes_per_second 0: as fast as it goes. `on_purged` gets the last entry of a damage here that
        another member has purged. `is_urgent`: the cluster has no leader, or cannot do without this node."""
        self._store = store
        self._on_fatal = on_fatal
        self._on_purged = on_purged
        self._is_urgent = is_urgent
        self._pace = Pace(bytes_per_second)
        self._longest_pause_s = longest_pause_s
        self._rng = rng or Random()
        self._in_thread = in_thread
        self._work: RepairWork | None = None  # under way
        self._sources = sources
        self._call = call
        self._suspects: set[int] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.found = 0
        self.repaired = 0

    @property
    def repairing_index(self) -> int:
        """The entry that the repair under way has come to; -1: none is."""
        return -1 if self._work is None else self._work.next_index

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def suspect(self, index: int) -> None:
        """A read of `index` failed: find out what is damaged there, and repair it. What is known to be
        damaged is on its way to be repaired, however often it is read."""
        if not any(known.first_index <= index <= known.last_index for known in self._store.damages):
            self._suspects.add(index)
            self._woken.set()

    async def _run(self) -> None:
        pause = _PAUSE_MIN_S
        while True:
            self._woken.clear()
            is_known = await self._look()
            is_repaired = await self.repair_all()
            if is_known and is_repaired:
                pause = _PAUSE_MIN_S
                if not self._store.damages:
                    await self._woken.wait()
            elif is_known:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(pause / 2, pause)):
                        await self._woken.wait()
                        continue
                pause = self._longer(pause)
            else:  # whoever reads there would wake this at once
                await asyncio.sleep(self._rng.uniform(pause / 2, pause))
                pause = self._longer(pause)

    def _longer(self, pause: float) -> float:
        longest = self._longest_pause_s
        return min(pause * 2, min(_PAUSE_URGENT_S, longest) if self._is_urgent() else longest)

    async def _look(self) -> bool:
        """False: what is damaged at some suspect could not be found out now, as on a full disk."""
        is_known = True
        suspects, self._suspects = self._suspects, set()
        for index in suspects:
            known = self._store.damages
            try:
                damage = await self._on_disk(lambda index=index: self._store.note_damage(index))  # type: ignore[misc]
            except StorageError as error:
                if error.code not in HARMLESS:
                    self._on_fatal(error)
                _log.error("cannot look at damage", index=index, reason=str(error))
                self._suspects.add(index)
                is_known = False
                continue
            if isinstance(damage, Damage) and damage not in known:
                self.found += 1
                _log.error(
                    "damaged entries: they are being repaired from another member",
                    first=damage.first_index,
                    last=damage.last_index,
                    file=damage.file,
                    offset=damage.offset,
                    reason=damage.reason,
                )
        return is_known

    async def repair_all(self) -> bool:
        """Repair what is known to be damaged. False: some of it could not be repaired now."""
        return all([await self._repair(damage) for damage in self._store.damages])

    async def _repair(self, damage: Damage) -> bool:
        peers = self._rng.sample(sorted(self._sources), len(self._sources))
        for first in range(len(peers)):
            try:
                work = self._work = self._store.begin_repair(damage)
            except StorageError as error:
                # It is gone: purged, truncated, or part of a larger one by now. Else the disk has failed.
                return error.code is Code.DATA_DAMAGED
            try:
                if not await self._bring(work, peers[first:] + peers[:first], damage):
                    has_some = work.next_index > damage.first_index
                    await self._in_thread(work.abandon, "repair")
                    if not has_some:
                        return False
                    continue  # some of it came from a member whose log goes on differently, perhaps
                await self._put_in_place(work)
            except Exception as error:
                # Not on a cancellation: a piece may be under way then, and the next start cleans up.
                await self._in_thread(work.abandon, "repair")
                if isinstance(error, StorageError) and error.code not in HARMLESS:
                    self._on_fatal(error)
                    return False
                # A mistake costs this attempt, and not all repairs that are to come.
                mistake = None if isinstance(error, DLedgerError) else error
                _log.warning("no repair", first=damage.first_index, reason=str(error), exc_info=mistake)
                continue
            finally:
                self._work = None
            self.repaired += 1
            _log.info("repaired", first=damage.first_index, last=damage.last_index)
            return True
        return False

    async def _bring(self, work: RepairWork, peers: list[str], damage: Damage) -> bool:
        """All of the range, from these members in turn: what one has lost another one may have. False: they
        have not all of it. What does not follow, or does not end as it must, is an error of `feed`."""
        for peer in peers + peers[:-1]:  # round once: the last one may have what the first one needed
            try:
                while not work.is_fed:
                    frames = await self._fetch(peer, work.next_index, damage.last_index)
                    before = work.next_index
                    await self._in_thread(lambda frames=frames: work.feed(frames), "repair")  # type: ignore[misc]
                    if work.next_index == before:
                        raise InvalidRequest("it sent nothing")
                    await self._breathe(len(frames.data))
                return True
            except StorageError:
                raise
            except Exception as error:
                mistake = None if isinstance(error, PeerUnreachable | DLedgerError) else error
                _log.warning("no repair from this member", peer=peer, reason=str(error), exc_info=mistake)
                if isinstance(error, InvalidRequest) and error.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN:
                    self._on_purged(damage.last_index)
        return False

    async def _fetch(self, peer: str, first_index: int, last_index: int) -> Frames:
        part = await self._sources[peer].fetch(first_index, last_index, _FETCH_TIMEOUT_S)
        if part.first_index != first_index:
            raise InvalidRequest("it sent other entries than were asked for")
        return Frames(*part)

    async def _put_in_place(self, work: RepairWork) -> None:
        """In pieces, so that neither memory nor the disk thread is taken up by the size of a data file."""
        while await self._in_thread(lambda: work.copy(_PIECE_BYTES), "repair"):
            await self._breathe(_PIECE_BYTES)
        while await self._on_disk(lambda: work.index_some(_PIECE_BYTES)):
            pass
        await self._on_disk(work.finish)

    async def _breathe(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        self._pace.took(size, loop.time())
        await asyncio.sleep(self._pace.wait_s(loop.time()))

    async def _on_disk(self, work: Callable[[], object]) -> object:
        return await asyncio.wrap_future(self._call(work))


class Scrubber:
    """Reads all that is stored, slowly, and has damage repaired before it meets other damage elsewhere."""

    def __init__(
        self,
        store: LogStore,
        readers: Executor | None,
        suspect: Callable[[int], None],
        *,
        bytes_per_second: int,
        pause_s: float,
        piece_bytes: int = 256 << 10,
    ) -> None:
        """bytes_per_second 0: never automatically. `pause_s` goes by between two rounds over the whole log.
        `readers` None: the loop has threads of its own."""
        self._store = store
        self._readers = readers
        self._suspect = suspect
        self._rate = bytes_per_second
        self._pause_s = pause_s
        self._piece_bytes = piece_bytes
        self._task: asyncio.Task[None] | None = None
        self.scrubbed_index = -1
        self.bytes_read = 0

    def start(self) -> None:
        if self._rate:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        at = 0
        pace = Pace(self._rate)
        loop = asyncio.get_running_loop()
        while True:
            try:
                next_index, _, wrapped = await self.step(at, pace)
            except Exception as error:  # a mistake, too, costs this round, and not all that are to come
                mistake = None if isinstance(error, DLedgerError) else error
                _log.error("the scrub cannot go on for now", index=at, reason=str(error), exc_info=mistake)
                next_index, wrapped = at, True
            wait_s = self._pause_s if wrapped else pace.wait_s(loop.time())
            await asyncio.sleep(max(wait_s, 0.01))
            at = next_index

    async def step(self, at: int, pace: Pace) -> tuple[int, Damage | None, bool]:
        """Verify some of the log from `at` on: where to go on, what was found, whether that was the end."""
        loop = asyncio.get_running_loop()
        at = max(at, self._store.begin_index)
        found = await loop.run_in_executor(self._readers, self._store.scrub, at, self._piece_bytes)
        pace.took(found.bytes_read, loop.time())
        self.bytes_read += found.bytes_read
        if found.damage is not None:
            self._suspect(found.damage.first_index)
        wrapped = found.next_index <= at or found.next_index > self._store.end_index
        self.scrubbed_index = self._store.end_index if wrapped else found.next_index - 1
        return found.next_index, found.damage, wrapped
