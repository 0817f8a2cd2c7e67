"""Applies committed entries to the program's state machine, saves its images and loads them.

The state machine runs on a thread of its own, because it may be slow and must not block the node. The
applied index is known on the loop. Without a state machine, all committed entries count as applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from dledger.errors import Code, DLedgerError, ReadFailed, StorageError
from dledger.infra.logs import get_logger
from dledger.infra.loops.readable import ReadableLog
from dledger.node.machine.state_feeder import READ_BYTES, ImageDamaged, RecoveryResult, StateFeeder
from dledger.node.machine.state_machine import AppliedEntry
from dledger.node.machine.state_plan import (
    ApplyStep,
    LoadStep,
    ReplayStep,
    SaveOnStep,
    SaveStep,
    StatePlan,
    StateStep,
)
from dledger.node.setup.trace import NodeTrace
from dledger.replica.images import ImageRequest
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.format.batch import Batch
from dledger.store.image_files import ImageMark

T = TypeVar("T")

_log = get_logger("state")

_RETRY_S = 0.2
_CLOSE_S = 5.0
#: Longest wait for the commit of an image's mark at a time.
_WAIT_MS = 1000
#: A follower applies entries this long after their commit, together with later ones, unless a read waits for
#: them. Applying one entry takes as much CPU time as applying many.
FOLLOWER_PAUSE_S: Final = 0.02


class Applier:
    """Implements dledger.node.async_shell.StateKeeper. Call all methods on the loop.

    Call `recover` first, before the store's committed index is used. Then call `wire`, and `start` once the
    log's images are known. Call `stop` in any case.
    """

    def __init__(
        self,
        feeder: StateFeeder | None,
        store: LogStore,
        trace: NodeTrace | None = None,
        *,
        retry_s: float = _RETRY_S,
    ) -> None:
        """`feeder`: feeds the program's state machine, if there is one. An unreadable range is retried after
        retry_s.
        """
        self._feeder = feeder
        self._retry_s = retry_s
        self._plan = StatePlan(
            replays=feeder is not None and feeder.is_durable,
            saves_aside=feeder is not None and feeder.saves_aside,
        )
        self._saving = -1  # mark of the image in progress
        self._store = store
        self._trace = trace
        self._woken = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")

    async def recover(self) -> None:
        """Recover the machine's own state. Raises StorageError."""
        if self._feeder is None or not self._feeder.is_durable:
            return
        try:
            recovered = await self._on_thread(self._feeder.recover)
        except Exception as error:
            raise _failure(error) from error
        self.recovered(recovered)

    def recovered(self, recovered: RecoveryResult | None) -> None:
        """Start from the recovered state, if there is one and the log does not contradict it."""
        if recovered is None:
            return
        applied, why_not = recovered
        if why_not:
            _log.warning("the recovered state is not used", reason=why_not, **applied._asdict())
        else:
            _log.info("state recovered", **applied._asdict())
            self._plan.recovered(applied.index)

    def wire(
        self,
        readable: ReadableLog,
        *,
        cached: Callable[[int, int, int], Sequence[Batch]],
        newest_image: Callable[[], int],
        needs_image: Callable[[], bool],
        is_leader: Callable[[], bool],
        saved: Callable[[int, bool], None],
        image_damaged: Callable[[ImageMark], None],
        on_damage: Callable[[int], None],
        on_fatal: Callable[[DLedgerError], None],
    ) -> None:
        """`cached`: TailCache.batches. `saved` receives the mark of a requested image, and whether it is in
        the files now. All are called on the loop.
        """
        self._readable = readable
        self._cached = cached
        self._newest_image = newest_image
        self._needs_image = needs_image
        self._is_leader = is_leader
        self._saved = saved
        self._image_damaged = image_damaged
        self._on_damage = on_damage
        self._on_fatal = on_fatal

    @property
    def applied_index(self) -> int:
        return self._readable.index if self._feeder is None else self._plan.applied

    def start(self) -> None:
        if self._is_stopped:
            return
        if self._needs_image():
            self._plan.forget()  # treat damage that other members have purged as purged on this node, too
        if self._feeder is not None:
            self._task = asyncio.create_task(self._run(self._feeder))

    def save(self, request: ImageRequest) -> None:
        """Write the requested image, after any that an earlier leadership has requested. See
        Shell.save_state."""
        if self._feeder is None:
            self._task = asyncio.create_task(self._save_sessions(request, self._task))
        else:
            self._plan.save(request)
            self._woken.set()

    async def _save_sessions(self, request: ImageRequest, earlier: asyncio.Task[None] | None) -> None:
        """Write an image without a state once its mark is committed, and `earlier` has ended."""
        feeder = StateFeeder(_NoMachine(), self._store)
        try:
            if earlier is not None:
                await asyncio.gather(earlier, return_exceptions=True)
            while self._readable.index < request.index:
                with suppress(ReadFailed):  # not committed yet
                    await self._readable.wait(request.index, _WAIT_MS)
            is_saving = await self._on_thread(feeder.begin_save, request, request.index - 1)
            more = await self._on_thread(feeder.save_on) if is_saving else None
            self._saved(request.index, more is False)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._on_fatal(_failure(error))

    def _report(self, *, is_stored: bool) -> None:
        """Report the end of the image in progress."""
        index, self._saving = self._saving, -1
        if index >= 0:
            self._saved(index, is_stored)

    def committed(self) -> None:
        if self._is_leader() or self._waiting:
            self._woken.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FOLLOWER_PAUSE_S, self._pause_ended)

    def _pause_ended(self) -> None:
        self._timer = None
        self._woken.set()

    async def wait(self, index: int, timeout_ms: int) -> None:
        """Wait until all committed entries up to `index` are applied. Raises ReadFailed after timeout_ms."""
        if self._feeder is None:
            await self._readable.wait(index, timeout_ms)
            return
        if self._plan.applied >= index:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (index, future)
        self._waiting.append(waiter)
        self._woken.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            text = f"applied up to {self._plan.applied}, not yet up to {index}"
            raise ReadFailed(text, code=Code.READ_NOT_CONFIRMED) from None
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    async def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(ReadFailed("the node is stopping", code=Code.READ_NOT_CONFIRMED))
        if self._feeder is not None:
            await self._close(self._feeder)
        self._thread.shutdown(wait=False)

    async def _close(self, feeder: StateFeeder) -> None:
        """Close the machine after the piece in progress."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._on_thread(feeder.close)
        except Exception as error:
            _log.error("the state machine could not be closed", exc_info=error)

    # -- inside -------------------------------------------------------------------------------------------

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run one piece of work at a time, in order."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _run(self, feeder: StateFeeder) -> None:
        try:
            while True:
                self._woken.clear()
                if not await self._advance(feeder):
                    await self._woken.wait()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._on_fatal(_failure(error))

    async def _advance(self, feeder: StateFeeder) -> bool:
        """Execute the next piece of work. Returns False if there is none now."""
        piece = self._plan.next(
            self._store.base.index,
            self._readable.index,
            self._newest_image(),
            needs_image=self._needs_image(),
        )
        if piece is None:
            return False
        try:
            return await self._do(feeder, piece)
        except ReadFailed:
            await asyncio.sleep(
                self._retry_s
            )  # the entries were purged or replaced meanwhile: check again where the log starts
            return True
        except StorageError as error:
            if error.code is not Code.DATA_DAMAGED:
                raise
            self._on_damage(error.index if isinstance(error, EntryDamaged) else self._plan.applied + 1)
            await asyncio.sleep(self._retry_s)
            return True

    async def _do(self, feeder: StateFeeder, piece: StateStep) -> bool:
        plan = self._plan
        match piece:
            case ApplyStep():
                batches = self._cached(piece.first, piece.last, READ_BYTES)
                last = await self._on_thread(feeder.apply, piece, batches)
                plan.has_applied(last)
                if self._trace is not None:
                    self._trace.event("raft", "apply", {"lidx": piece.first, "last": last})
            case ReplayStep():
                plan.replayed(await self._on_thread(feeder.replay, piece))
            case LoadStep():
                self._report(is_stored=False)  # an image in progress ends
                try:
                    loaded = await self._on_thread(feeder.load, piece)
                except ImageDamaged as error:
                    _log.error("a state image is damaged", index=error.mark.index, reason=str(error))
                    self._image_damaged(error.mark)
                    return False
                if loaded is None:
                    return False
                plan.loaded(loaded)
                if self._trace is not None:
                    self._trace.event("raft", "load", {"lidx": loaded.applied})
                _log.info("state loaded", index=loaded.applied, size=loaded.size)
            case SaveStep(request):
                self._saving = request.index
                is_saving = await self._on_thread(feeder.begin_save, request, plan.applied)
                plan.saving(is_saving=is_saving)
                if not is_saving:
                    self._report(is_stored=False)
            case SaveOnStep():
                more = await self._on_thread(feeder.save_on)
                plan.saving(is_saving=more is True)
                if not more:
                    self._report(is_stored=more is False)
        for applied_at, future in self._waiting:
            if applied_at <= plan.applied and not future.done():
                future.set_result(None)
        return True


class _NoMachine:
    """Implements StateMachine for a node without one."""

    def apply(self, entries: Sequence[AppliedEntry]) -> None: ...

    def save(self) -> Iterable[bytes]:
        return ()

    def load(self, chunks: Iterable[bytes]) -> None: ...


def _failure(error: Exception) -> DLedgerError:
    if isinstance(error, DLedgerError):
        return error
    _log.error("the state machine failed", exc_info=error)
    text = f"the state machine failed: {type(error).__name__}: {error}"
    failure = StorageError(text, code=Code.INTERNAL_ERROR)
    failure.__cause__ = error
    return failure
