"""Repair of damaged entries from any other member. Any read, or the scrub, may detect the damage.

See rule 10 of docs/guarantees.md.

Damaged entries are never truncated or guessed. A damaged range is only replaced by entries that form a chain
from the good entry before it to the good one after it. Until then reads of the range fail, and this node does
not lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from random import Random
from typing import Protocol

from dledger.errors import Code, DLedgerError, InvalidRequest, ReadFailed, StorageError
from dledger.infra.logs import get_logger
from dledger.infra.loops.pacing import Pacer
from dledger.infra.loops.threads import ThreadRunner, in_thread
from dledger.node.disk.disk_worker import HARMLESS
from dledger.rpc.peer_transport import PeerUnreachable
from dledger.rpc.ports import FetchedFrames
from dledger.store.api import Damage, Frames, LogStore, RepairWork
from dledger.store.image_files import ImageMark

_log = get_logger("repair")

_FETCH_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
_PAUSE_MIN_S = 0.2
_PAUSE_MAX_S = 30.0
_PAUSE_URGENT_S = 1.0  # longest pause while others wait for this node, which may not lead before the repair


class RepairSource(Protocol):
    """A member that may have good entries."""

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        """Return whole batches starting at first_index, as many as fit into one piece."""


class RepairableStore(Protocol):
    """The part of a LogStore used by a Repairer."""

    @property
    def damages(self) -> Sequence[Damage]: ...

    def note_damage(self, index: int) -> Damage | None: ...
    def begin_repair(self, damage: Damage) -> RepairWork: ...


class Repairer:
    """Repairs damage. Call all methods on the loop; `call` runs writes on the disk thread."""

    def __init__(
        self,
        store: RepairableStore,
        sources: Mapping[str, RepairSource],
        call: Callable[[Callable[[], object]], Future[object]],
        *,
        on_fatal: Callable[[DLedgerError], None],
        on_purged: Callable[[Damage], None],
        is_urgent: Callable[[], bool],
        bytes_per_second: int,
        longest_pause_s: float = _PAUSE_MAX_S,
        rng: Random | None = None,
        in_thread: ThreadRunner = in_thread,
    ) -> None:
        """If bytes_per_second is 0, repairs have no rate limit. `on_purged` receives a damaged range of this
        log whose first entry another member has purged. `is_urgent` returns True if the cluster has no leader
        or needs this node.
        """
        self._store = store
        self._on_fatal = on_fatal
        self._on_purged = on_purged
        self._is_urgent = is_urgent
        self._pace = Pacer(bytes_per_second)
        self._longest_pause_s = longest_pause_s
        self._rng = rng or Random()
        self._in_thread = in_thread
        self._work: RepairWork | None = None  # in progress
        self._sources = sources
        self._call = call
        self._suspects: set[int] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.found = 0
        self.repaired = 0

    @property
    def repairing_index(self) -> int:
        """Index of the next entry to repair; -1 if no repair is in progress."""
        return -1 if self._work is None else self._work.next_index

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def suspect(self, index: int) -> None:
        """Check the damage behind a failed read of `index`, and repair it. Known damage is ignored, because
        its repair is already pending.
        """
        if not any(damage.first_index <= index <= damage.last_index for damage in self._store.damages):
            self._suspects.add(index)
            self._woken.set()

    async def _run(self) -> None:
        pause = _PAUSE_MIN_S
        while True:
            self._woken.clear()
            is_known = await self._locate_damages()
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
            else:  # sleep without waiting for `suspect`, which any read of the damage calls
                await asyncio.sleep(self._rng.uniform(pause / 2, pause))
                pause = self._longer(pause)

    def _longer(self, pause: float) -> float:
        longest = self._longest_pause_s
        return min(pause * 2, min(_PAUSE_URGENT_S, longest) if self._is_urgent() else longest)

    async def _locate_damages(self) -> bool:
        """Locate the damage at each suspect. Returns False if that failed for any, for example on a full
        disk.
        """
        is_known = True
        suspects, self._suspects = self._suspects, set()
        for index in suspects:
            damages = self._store.damages
            try:
                damage = await self._on_disk(lambda index=index: self._store.note_damage(index))  # type: ignore[misc]
            except StorageError as error:
                if error.code not in HARMLESS:
                    self._on_fatal(error)
                _log.error("cannot examine damage", index=index, reason=str(error))
                self._suspects.add(index)
                is_known = False
                continue
            if isinstance(damage, Damage) and damage not in damages:
                self.found += 1
                _log.error(
                    "damaged entries: repairing from another member",
                    first=damage.first_index,
                    last=damage.last_index,
                    file=damage.file,
                    offset=damage.offset,
                    reason=damage.reason,
                )
        return is_known

    async def repair_all(self) -> bool:
        """Repair all known damage. Returns False if any repair failed."""
        return all([await self._repair(damage) for damage in self._store.damages])

    async def _repair(self, damage: Damage) -> bool:
        """Try to repair with the other members in random order, so that each of them is tried first once."""
        peers = self._rng.sample(sorted(self._sources), len(self._sources))
        for first in range(len(peers)):
            try:
                work = self._work = self._store.begin_repair(damage)
            except StorageError as error:
                # The damage is purged, truncated, or part of a larger one now. Otherwise the disk has
                # failed.
                return error.code is Code.DATA_DAMAGED
            try:
                if not await self._fetch_all(work, peers[first:] + peers[:first], damage):
                    has_some = work.next_index > damage.first_index
                    await self._in_thread(work.abandon, "repair")
                    if not self._is_known(damage):
                        return True  # a later round repairs the rest that a purge or truncation has left
                    if not has_some:
                        return False
                    continue  # a part may be from a member with a different log
                await self._install(work)
            except Exception as error:
                # After a cancellation a piece may be in progress, so nothing is abandoned. The next start
                # cleans up.
                await self._in_thread(work.abandon, "repair")
                if isinstance(error, StorageError) and error.code not in HARMLESS:
                    self._on_fatal(error)
                    return False
                # A bug fails this attempt only, not later repairs.
                mistake = None if isinstance(error, DLedgerError) else error
                _log.warning("repair failed", first=damage.first_index, reason=str(error), exc_info=mistake)
                continue
            finally:
                self._work = None
            self.repaired += 1
            _log.info("repaired", first=damage.first_index, last=damage.last_index)
            return True
        return False

    def _is_known(self, damage: Damage) -> bool:
        """Return False if the log has been purged or truncated so that it no longer contains the whole
        damage."""
        return damage in self._store.damages

    async def _fetch_all(self, work: RepairWork, peers: list[str], damage: Damage) -> bool:
        """Fetch the whole range from these members in turn, because each may lack different entries. Returns
        False if all of them lack some. `feed` raises an error for entries that do not chain.
        """
        # one more round: the last member may have entries that the first one lacked
        for peer in peers + peers[:-1]:
            try:
                while not work.is_fed:
                    if not self._is_known(damage):
                        return False
                    frames = await self._fetch(peer, work.next_index, damage.last_index)
                    before = work.next_index
                    await self._in_thread(lambda frames=frames: work.feed(frames), "repair")  # type: ignore[misc]
                    if work.next_index == before:
                        raise InvalidRequest("the member returned no entries for the repair")
                    await self._wait_for_rate(len(frames.data))
                return True
            except StorageError:
                raise
            except Exception as error:
                mistake = None if isinstance(error, PeerUnreachable | DLedgerError) else error
                _log.warning("cannot repair from this member", peer=peer, reason=str(error), exc_info=mistake)
                is_purged = (
                    isinstance(error, InvalidRequest) and error.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN
                )
                if is_purged and self._is_known(damage):
                    self._on_purged(damage)
        return False

    async def _fetch(self, peer: str, first_index: int, last_index: int) -> Frames:
        part = await self._sources[peer].fetch(first_index, last_index, _FETCH_TIMEOUT_S)
        if part.first_index != first_index:
            raise InvalidRequest(f"{peer} returned entries outside the range requested for the repair")
        return Frames(*part)

    async def _install(self, work: RepairWork) -> None:
        """Install the range in pieces, to limit memory use and the time on the disk thread."""
        while await self._in_thread(lambda: work.copy(_PIECE_BYTES), "repair"):
            await self._wait_for_rate(_PIECE_BYTES)
        while await self._on_disk(lambda: work.index_some(_PIECE_BYTES)):
            pass
        await self._on_disk(work.finish)

    async def _wait_for_rate(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        self._pace.record(size, loop.time())
        await asyncio.sleep(self._pace.wait_s(loop.time()))

    async def _on_disk(self, work: Callable[[], object]) -> object:
        return await asyncio.wrap_future(self._call(work))


class Scrubber:
    """Reads the whole log slowly, to find and repair damage while other copies are still intact."""

    def __init__(
        self,
        store: LogStore,
        readers: Executor | None,
        suspect: Callable[[int], None],
        *,
        image_damaged: Callable[[ImageMark], None],
        bytes_per_second: int,
        pause_s: float,
        piece_bytes: int = 256 << 10,
    ) -> None:
        """If bytes_per_second is 0, there is no automatic scrub. `pause_s`: pause between two rounds over the
        whole log and the newest state image. If `readers` is None, the loop's default executor reads.
        """
        self._store = store
        self._readers = readers
        self._suspect = suspect
        self._image_damaged = image_damaged
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
        pace = Pacer(self._rate)
        loop = asyncio.get_running_loop()
        while True:
            try:
                next_index, _, wrapped = await self.step(at, pace)
            except Exception as error:  # a bug, too, fails this round only
                mistake = None if isinstance(error, DLedgerError) else error
                _log.error("the scrub was interrupted", index=at, reason=str(error), exc_info=mistake)
                next_index, wrapped = at, True
            if wrapped:
                await self._scrub_image(pace)
            wait_s = self._pause_s if wrapped else pace.wait_s(loop.time())
            await asyncio.sleep(max(wait_s, 0.01))
            at = next_index

    async def _scrub_image(self, pace: Pacer) -> None:
        """Verify the newest state image, unless another one replaces it meanwhile."""
        loop, images = asyncio.get_running_loop(), self._store.images
        if (newest := images.newest) is None:
            return
        try:
            for number in range(len(newest.crcs)):
                chunk = await loop.run_in_executor(self._readers, images.chunk, newest, number)
                pace.record(len(chunk), loop.time())
                await asyncio.sleep(pace.wait_s(loop.time()))
        except ReadFailed:
            return
        except StorageError as error:
            _log.error("a state image is damaged", reason=str(error))
            self._image_damaged(newest.mark)

    async def step(self, index: int, pace: Pacer) -> tuple[int, Damage | None, bool]:
        """Verify a part of the log, starting at `index`. Returns the next index, the damage that was found,
        and whether the scrub has reached the end of the log.
        """
        loop = asyncio.get_running_loop()
        index = max(index, self._store.begin_index)
        result = await loop.run_in_executor(self._readers, self._store.scrub, index, self._piece_bytes)
        pace.record(result.bytes_read, loop.time())
        self.bytes_read += result.bytes_read
        if result.damage is not None:
            self._suspect(result.damage.first_index)
        wrapped = result.next_index <= index or result.next_index > self._store.end_index
        self.scrubbed_index = self._store.end_index if wrapped else result.next_index - 1
        return result.next_index, result.damage, wrapped
