"""Applies committed entries to the program's state machine, saves its images and loads them.

The state machine lives on a thread of its own: it may be slow, and may not hold up the node. What it has
applied is known on the loop. Without a state machine everything committed counts as applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dledger.errors import Code, DLedgerError, ReadFailed, StorageError
from dledger.node.images import find_image
from dledger.node.logs import get_logger
from dledger.node.readable import ReadableLog
from dledger.node.state_machine import AppliedEntry, StateMachine
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.batch import MAGIC_NORMAL, decode_entries
from dledger.store.internal import decode_internal

_log = get_logger("state")

_READ_BYTES = 1 << 20
_RETRY_S = 0.2


class Applier:
    """Implements dledger.node.async_shell.StateKeeper. All methods on the loop."""

    def __init__(
        self,
        machine: StateMachine | None,
        store: LogStore,
        readable: ReadableLog,
        *,
        newest_image: Callable[[], int],
        needs_image: Callable[[], bool],
        saved: Callable[[int, Sequence[bytes]], None],
        on_damage: Callable[[int], None],
        on_fatal: Callable[[DLedgerError], None],
    ) -> None:
        """`saved` gets the state as of an image; it is called on the loop."""
        self._machine = machine
        self._store = store
        self._readable = readable
        self._newest_image = newest_image
        self._needs_image = needs_image
        self._saved = saved
        self._on_damage = on_damage
        self._on_fatal = on_fatal
        self._applied = -1
        self._loaded = False  # the machine holds a state: the empty one, or that of an image
        self._save_at: int | None = None  # image index: nothing from there on is applied before it is saved
        self._woken = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")

    @property
    def applied_index(self) -> int:
        return self._readable.index if self._machine is None else self._applied

    def start(self) -> None:
        if self._machine is not None:
            self._task = asyncio.create_task(self._run())

    def save(self, image_index: int) -> None:
        if self._machine is None:
            self._saved(image_index, ())
            return
        self._save_at = image_index
        self._woken.set()

    def log_was_reset(self) -> None:
        """The state is not that of the log any more: an image will come."""
        self._loaded = False
        self._woken.set()

    def committed(self) -> None:
        self._woken.set()

    async def wait(self, index: int, timeout_ms: int) -> None:
        """Until all committed entries up to `index` are applied. ReadFailed after timeout_ms."""
        if self._machine is None:
            await self._readable.wait(index, timeout_ms)
            return
        if self._applied >= index:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (index, future)
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            text = f"applied up to {self._applied}, not yet up to {index}"
            raise ReadFailed(text, code=Code.READ_NOT_CONFIRMED) from None
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(ReadFailed("the node is stopping", code=Code.READ_NOT_CONFIRMED))
        self._thread.shutdown(wait=False)

    # -- inside -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                self._woken.clear()
                if not await self._advance():
                    await self._woken.wait()
        except asyncio.CancelledError:
            raise
        except DLedgerError as error:
            self._on_fatal(error)
        except Exception as error:
            _log.error("the state machine failed", exc_info=error)
            text = f"the state machine failed: {type(error).__name__}: {error}"
            self._on_fatal(StorageError(text, code=Code.INTERNAL_ERROR))

    async def _advance(self) -> bool:
        """Do the next piece of work. False: there is none now."""
        loop = asyncio.get_running_loop()
        if self._loaded and self._applied < self._store.base.index:
            self._loaded = False  # purged before it was applied here: begin from the image instead
        try:
            if not self._loaded:
                return not self._needs_image() and await self._load(loop)
            return await self._apply_or_save(loop)
        except ReadFailed:
            await asyncio.sleep(_RETRY_S)  # purged or replaced under us: look again at where the log begins
            return True
        except StorageError as error:
            if error.code is not Code.DATA_DAMAGED:
                raise
            self._on_damage(error.index if isinstance(error, EntryDamaged) else self._applied + 1)
            await asyncio.sleep(_RETRY_S)
            return True

    async def _load(self, loop: asyncio.AbstractEventLoop) -> bool:
        found = await loop.run_in_executor(
            self._thread, self._load_newest, self._newest_image(), self._readable.index
        )
        if found is None:
            return False
        self._loaded = True
        self._reached(found)
        return True

    def _load_newest(self, newest_image: int, readable_index: int) -> int | None:
        """On the machine's thread: load the newest image. How far its state reaches; None: not there yet."""
        assert self._machine is not None
        base = self._store.base
        if newest_image < 0:
            if base.index >= 0:
                return None
            self._machine.load(())
            return -1
        heads = self._store.iter_heads(newest_image)
        image = find_image(
            (b.first_index, decode_internal(b.head)) for b in heads if b.last_index <= readable_index
        )
        if image is None:
            return None
        self._machine.load(_pieces(image.state))
        _log.info("state image loaded", index=image.image_index, size=len(image.state))
        return image.image_index - 1

    async def _apply_or_save(self, loop: asyncio.AbstractEventLoop) -> bool:
        last = self._readable.index
        if self._save_at is not None:
            if self._applied >= self._save_at - 1:
                await self._save(loop)
                return True
            last = min(last, self._save_at - 1)
        if self._applied >= last:
            return False
        applied = await loop.run_in_executor(self._thread, self._apply, self._applied + 1, last)
        if self._loaded:  # no reset came in between
            self._reached(applied)
        return True

    def _apply(self, first_index: int, last_index: int) -> int:
        """On the machine's thread."""
        assert self._machine is not None
        frames = self._store.read(first_index, last_index, _READ_BYTES, whole_batches=False)
        entries = [
            AppliedEntry(entry.index, entry.term, entry.body, entry.pos)
            for entry in decode_entries(frames.data)
            if entry.magic == MAGIC_NORMAL
        ]
        if entries:
            self._machine.apply(entries)
        return frames.last_index

    async def _save(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._machine is not None and self._save_at is not None
        image_index, self._save_at = self._save_at, None
        if self._applied != image_index - 1:
            return  # of a leadership that is over: other entries are there now
        machine = self._machine
        state = await loop.run_in_executor(self._thread, lambda: [bytes(piece) for piece in machine.save()])
        self._saved(image_index, state)

    def _reached(self, index: int) -> None:
        self._applied = index
        for applied_at, future in self._waiting:
            if applied_at <= index and not future.done():
                future.set_result(None)


def _pieces(state: bytes, size: int = 1 << 20) -> list[bytes]:
    return [state[at : at + size] for at in range(0, len(state), size)]
