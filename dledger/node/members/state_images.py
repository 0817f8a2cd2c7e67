"""Copies of state images between members: chunks for others, and the image that this node needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from random import Random
from typing import Protocol

from dledger.errors import Code, DLedgerError, InvalidRequest, ReadFailed, StorageError
from dledger.infra.logs import get_logger
from dledger.infra.loops.threads import ThreadRunner, in_thread
from dledger.node.members.catch_up import CatchUp
from dledger.rpc.peer_transport import PeerUnreachable
from dledger.rpc.ports import ImageChunk, ImageQuestion
from dledger.store.image_files import (
    ImageFiles,
    ImageManifest,
    ImageMark,
    ImageReceiver,
    decode_manifest,
)

_log = get_logger("images")

_CHUNK_TIMEOUT_S = 30.0
#: Images that a member may have replaced by newer ones while they were copied from it.
_MAX_REPLACED = 16
_PAUSE_MIN_S = 0.1
_PAUSE_MAX_S = 5.0


class ImageSource:
    """Serves the newest image of this node, at the rate of catch-up."""

    def __init__(
        self,
        images: ImageFiles,
        readers: Executor | None,
        catch_up: CatchUp,
        *,
        adopted: Callable[[], int],
        damaged: Callable[[ImageMark], None],
    ) -> None:
        """`adopted` returns the mark of the image that is known to belong to this log. `damaged` is called on
        the loop with the mark of an image that cannot be read. If `readers` is None, the loop's default
        executor reads."""
        self._images = images
        self._readers = readers
        self._catch_up = catch_up
        self._adopted = adopted
        self._damaged = damaged

    async def chunk(self, peer: str, question: ImageQuestion) -> ImageChunk:
        """Return a chunk of the newest image. Raises ReadFailed if it is older than required."""
        newest = self._images.newest
        if newest is None or newest.mark.index != self._adopted() or newest.mark.index < question.least_index:
            raise ReadFailed(f"this node has no state image with a mark from {question.least_index} on")
        is_known = newest.mark[:2] == (question.index, question.term)
        number = question.chunk if is_known else 0
        if not 0 <= number < max(1, len(newest.crcs)):
            raise InvalidRequest(f"the image has no chunk {number}")
        await self._catch_up.pause(peer)
        data = await self._read(newest, number) if newest.crcs else b""
        self._catch_up.record(peer, len(data))
        return ImageChunk(b"" if is_known else newest.encode(), data)

    async def _read(self, newest: ImageManifest, number: int) -> bytes:
        work = asyncio.get_running_loop().run_in_executor(self._readers, self._images.chunk, newest, number)
        try:
            return await work
        except StorageError as error:
            if error.code is Code.DATA_DAMAGED:
                _log.error("a state image is damaged", index=newest.mark.index, reason=str(error))
                self._damaged(newest.mark)
            raise


class ImageLink(Protocol):
    """A connection to another member; see dledger.node.members.peers."""

    async def image(self, question: ImageQuestion, timeout_s: float) -> ImageChunk: ...


class ImageFetcher:
    """Fetches the image that this node needs from any member that has it."""

    def __init__(
        self,
        images: ImageFiles,
        sources: Mapping[str, ImageLink],
        *,
        wanted: Callable[[], int | None],
        leader: Callable[[], str | None],
        stored: Callable[[], None],
        rng: Random | None = None,
        in_thread: ThreadRunner = in_thread,
    ) -> None:
        """`wanted` returns the least mark that will do, or None if no image is needed. `stored` is called
        when one has arrived."""
        self._images = images
        self._sources = sources
        self._wanted = wanted
        self._leader = leader
        self._stored = stored
        self._rng = rng or Random()
        self._in_thread = in_thread
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.fetching: tuple[int, int] | None = None  # chunks that have arrived, and all chunks

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def check(self) -> None:
        """Start to fetch if an image is needed. Call with every tick."""
        if not self._woken.is_set() and self._wanted() is not None:
            self._woken.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = _PAUSE_MIN_S
        while True:
            await self._woken.wait()
            least = self._wanted()
            if least is None or await self._fetch(least):
                pause = _PAUSE_MIN_S
            else:
                await asyncio.sleep(self._rng.uniform(pause / 2, pause))
                pause = min(2 * pause, _PAUSE_MAX_S)
            self._woken.clear()

    async def _fetch(self, least: int) -> bool:
        """Fetch from the other members in random order, and from the leader last: it has other work."""
        peers = self._rng.sample(sorted(self._sources), len(self._sources))
        peers.sort(key=lambda peer: peer == self._leader())
        for peer in peers:
            try:
                if (source := self._sources.get(peer)) is not None and await self._fetch_from(source, least):
                    self._stored()
                    return True
            except (PeerUnreachable, ReadFailed, InvalidRequest) as error:
                _log.debug("no state image from this member", peer=peer, reason=str(error))
            except DLedgerError as error:
                _log.warning("cannot fetch a state image", peer=peer, reason=str(error))
            except Exception as error:  # a bug fails this attempt only
                _log.error("cannot fetch a state image", peer=peer, exc_info=error)
            finally:
                self.fetching = None
        return False

    async def _fetch_from(self, source: ImageLink, least: int) -> bool:
        """Fetch an image, and continue with a newer one if the member replaces it. Returns False if the image
        is no longer needed."""
        receiver: ImageReceiver | None = None
        question = ImageQuestion(least, 0, 0, 0)
        images = 0
        try:
            while self._wanted() is not None:
                part = await source.image(question, _CHUNK_TIMEOUT_S)
                images += bool(part.manifest)
                if images > _MAX_REPLACED:
                    raise ReadFailed(f"{images} images in a row were replaced while they were copied")
                receiver = await self._in_thread(partial(self._store, receiver, part, least), "image")
                self.fetching = receiver.next_chunk, len(receiver.manifest.crcs)
                if receiver.is_complete:
                    await self._in_thread(receiver.finish, "image")
                    _log.info("state image fetched", index=receiver.manifest.mark.index)
                    receiver = None
                    return True
                mark = receiver.manifest.mark
                question = ImageQuestion(least, mark.index, mark.term, receiver.next_chunk)
            return False
        finally:
            if receiver is not None:
                receiver.pause()

    def _store(self, receiver: ImageReceiver | None, part: ImageChunk, least: int) -> ImageReceiver:
        """Store a chunk, the first one of an image with a new receiver. Called on a thread."""
        if not part.manifest:
            if receiver is None:
                raise InvalidRequest("a chunk without its image")
            receiver.write(part.data)
            return receiver
        if receiver is not None:
            receiver.pause()
        try:
            manifest = decode_manifest(part.manifest)
        except ValueError as error:
            raise InvalidRequest(f"the manifest of an image is invalid: {error}") from None
        if manifest.mark.index < least:
            raise InvalidRequest(f"the image {manifest.mark.index} is older than {least}")
        if self._images.has_later(manifest.mark):
            # Until the replica has taken the image that has arrived last, it still asks for one.
            raise InvalidRequest(f"this node has a later image than {manifest.mark.index}")
        new = self._images.receiver(manifest)
        if new.next_chunk == 0 and manifest.crcs:
            try:
                new.write(part.data)
            except StorageError:
                new.pause()
                raise
        return new
