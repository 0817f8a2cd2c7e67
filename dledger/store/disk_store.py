"""The log store on disk: append, group commit, truncation and reads by index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from dledger.core.values import Base, HardState, Tail, TermRun
from dledger.errors import Code, DLedgerError, ReadFailed, StorageError
from dledger.infra.files.disk import Buffer, Disk, OsDisk
from dledger.infra.files.platform import FULL
from dledger.store.api import BatchHead, Damage, EntryDamaged, EntryHeader, Frames, ReservedEnd, ScrubStep
from dledger.store.bodies import Span
from dledger.store.damage import KnownDamage, clip, locate, merge, write_damages
from dledger.store.failure import StoreFailure
from dledger.store.files import FileSequence, SyncError, add_run
from dledger.store.format.batch import Batch, encode_blank, place
from dledger.store.format.layout import INDEX_RECORD_SIZE, NodePaths, index_file_size, index_records
from dledger.store.identity import Identity, load_identity, note_change, save_identity, settle_members
from dledger.store.image_files import ImageFiles
from dledger.store.opening import StoreOpener, acquire_lock, finish_reset, leave_marker
from dledger.store.reading import LogReader
from dledger.store.recovery import RecoveredLog, clip_runs
from dledger.store.repair import Repair, scrub_step
from dledger.store.space import DiskSpace, default_reserve, spend_reserve
from dledger.store.state_files import (
    Checkpoint,
    StoredBase,
    read_sessions,
    tail_of,
    write_base,
    write_checkpoint,
    write_hard_state,
    write_sessions,
)

_COPY_BYTES = 4 << 20
_AUTO_CHECKPOINT_BYTES = 256 << 20  # between checkpoints; bounds the verification work of a restart


class DiskLogStore:
    """`LogStore` in a directory. Created by `open`."""

    def __init__(
        self,
        disk: Disk,
        paths: NodePaths,
        lock: int,
        identity: Identity,
        hard_state: HardState,
        data: FileSequence,
        index: FileSequence,
        recovered: RecoveredLog,
        checkpoint: Checkpoint | None,
        space: DiskSpace,
    ) -> None:
        self.identity = identity
        self._list_is_unsaved = False  # the list of first members of a directory of format 1
        self.data_file_size = identity.data_file_size
        self.repairs = tuple(recovered.repairs)  # repairs made while opening, to be logged
        self._disk = disk
        self._paths = paths
        self._lock_handle = lock
        self._hard_state = hard_state
        self._data = data
        self._index = index
        self._space = space
        self._base = recovered.base
        self._tail = recovered.tail
        self._durable = recovered.tail
        self._term_runs = recovered.term_runs
        self._damages = recovered.damages
        committed = checkpoint.committed_index if checkpoint is not None else -1
        self._committed = min(max(committed, self._base.index), self._tail.index)
        self._checkpoint_tail = checkpoint.tail if checkpoint is not None else None
        self._generation = 0
        self._failure = StoreFailure(disk, paths)
        self.on_synced: Callable[[], None] = lambda: None
        self._closed = False
        self._reader = LogReader(data, index, self._base, self._tail.index, self._damages)
        self._identity_lock = Lock()
        self.images = ImageFiles(disk, paths.images, on_first=self._note_change)
        space.image_bytes = lambda: self.images.newest_bytes

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        disk: Disk | None = None,
        cluster_id: str | None = None,
        group: str | None = None,
        node_id: str | None = None,
        members: tuple[str, ...] | None = None,
        disk_reserve_bytes: int | None = None,
        unfinished: bool = False,
    ) -> DiskLogStore:
        """Lock the directory, check its identity and recover the log. All its entries are durable on return.

        `disk_reserve_bytes` are kept free for writes that are required even if the disk is full; the default
        is the size of a data file and its index. `unfinished`: see load_identity. Raises StorageError:
        NOT_INITIALIZED, FOREIGN_DIRECTORY, RECOVERY_UNFINISHED, DIRECTORY_LOCKED, STATE_DAMAGED,
        DATA_DAMAGED, DISK_FULL, or DISK_ERROR.
        """
        disk = disk or OsDisk()
        paths = NodePaths(Path(directory))
        identity = load_identity(
            directory,
            disk=disk,
            cluster_id=cluster_id,
            group=group,
            node_id=node_id,
            unfinished=unfinished,
        )
        if disk_reserve_bytes is None:
            disk_reserve_bytes = default_reserve(identity.data_file_size)
        while True:
            try:
                return cls._open(disk, paths, identity, members, disk_reserve_bytes)
            except OSError as error:
                full = error.errno in FULL
                if full and not isinstance(error, SyncError) and spend_reserve(disk, paths):
                    continue
                if not full or isinstance(error, SyncError):
                    leave_marker(disk, paths)
                code = Code.DISK_FULL if full else Code.DISK_ERROR
                raise StorageError(f"cannot open {paths.root}: {error}", code=code) from error

    @classmethod
    def _open(
        cls,
        disk: Disk,
        paths: NodePaths,
        identity: Identity,
        members: tuple[str, ...] | None,
        disk_reserve_bytes: int,
    ) -> DiskLogStore:
        size = identity.data_file_size
        data = FileSequence(disk, paths.data, size)
        index = FileSequence(disk, paths.index_files, index_file_size(size))
        space = DiskSpace(disk, paths, data, index, disk_reserve_bytes)
        lock = -1
        try:
            lock = acquire_lock(disk, paths)
            opening = StoreOpener(disk, paths, data, index)
            saved_members = identity.members
            if members is not None:
                identity = settle_members(disk, paths, identity, members, opening.hard_state)
            checkpoint, recovered = opening.run()
            space.open()
            disk.sync_directory(paths.root)
            if disk.exists(paths.marker):
                disk.unlink(paths.marker)
        except (OSError, DLedgerError):
            data.close()
            index.close()
            if lock != -1:
                disk.close(lock)
            raise
        hard_state = opening.hard_state
        store = cls(disk, paths, lock, identity, hard_state, data, index, recovered, checkpoint, space)
        store.images.open()
        store._list_is_unsaved = hard_state.term > 0 and identity.members != saved_members
        store._check()
        return store

    # -- properties

    @property
    def base(self) -> Base:
        return self._base

    @property
    def begin_index(self) -> int:
        return self._base.index + 1

    @property
    def end_index(self) -> int:
        return self._tail.index

    @property
    def tail(self) -> Tail:
        return self._tail

    @property
    def durable_index(self) -> int:
        return self._durable.index

    @property
    def hard_state(self) -> HardState:
        return self._hard_state

    @property
    def term_runs(self) -> list[TermRun]:
        return list(self._term_runs)

    @property
    def committed_checkpoint(self) -> int:
        return self._committed

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def damages(self) -> tuple[Damage, ...]:
        return tuple(known.damage for known in self._damages)

    # -- space

    def free_bytes(self) -> int:
        return self._space.free_bytes()

    def could_take(self, end_pos: int, end_index: int) -> bool:
        return self._space.could_take(end_pos, end_index)

    def has_room_after(self, tail: Tail) -> bool:
        return self._space.has_room_after(tail)

    @property
    def reserved_end(self) -> ReservedEnd:
        return self._space.reserved_end(self._tail)

    @property
    def likely_bytes(self) -> int:
        return self._space.likely_bytes(self._tail)

    @property
    def reserved_bytes(self) -> int:
        return self._space.reserved_bytes(self._tail)

    def prepare(self, ahead_bytes: int) -> bool:
        self._failure.require_none()
        try:
            return self._space.prepare(ahead_bytes, lambda: self._tail)
        except OSError as error:
            # The error may come from an fsync, after which the page cache can no longer be trusted.
            self._failure.leave_marker()
            raise self._failure.set(f"prepare: {error}") from error

    def _check(self) -> None:
        assert self._base.index <= self._durable.index <= self._tail.index
        assert self._committed <= self._durable.index

    # -- writing

    def append(self, batches: Sequence[Batch]) -> None:
        self._failure.require_none()
        size = self.data_file_size
        runs: list[tuple[int, list[Buffer], int]] = []  # position, buffers, bytes: each within one file
        index, term, pos = self._tail.index, self._tail.term, self._tail.pos
        for batch in batches:
            assert batch.first_index == index + 1, f"batch {batch.first_index} after {index}"
            assert batch.term >= term, f"batch of term {batch.term} after {term}"
            assert batch.end_pos - batch.pos == len(batch.data)
            if batch.pos != pos:
                assert batch.pos == place(pos, batch.size, size), f"batch at {batch.pos} after {pos}"
                add_run(runs, pos, encode_blank(batch.pos - pos), size)
            add_run(runs, batch.pos, batch.data, size)
            index, term, pos = batch.last_index, batch.term, batch.end_pos
        if not runs:
            return
        tail = batches[-1].tail
        self._reserve(runs, tail)
        try:
            for start, buffers, length in runs:
                self._data.write(start, buffers, size=length)
        except (StorageError, OSError) as error:
            raise self._failure.after("append", error) from error
        for batch in batches:
            if not self._term_runs or self._term_runs[-1].term != batch.term:
                self._term_runs.append(TermRun(batch.term, batch.first_index))
        self._reader.add(batches, tail.index)
        self._tail = tail

    def _reserve(self, runs: list[tuple[int, list[Buffer], int]], tail: Tail) -> None:
        """Create the required files before anything is written, so that a full disk changes nothing."""
        first, last = (self._tail.index + 1) * INDEX_RECORD_SIZE, tail.index * INDEX_RECORD_SIZE
        if self._data.has_range(runs[0][0], tail.pos - 1) and self._index.has_range(first, last):
            return
        index_starts = range(self._index.start_of(first), last + 1, self._index.file_size)
        try:
            with self._space.files_lock:
                for pos, _, _ in runs:
                    self._data.ensure(pos)
                for pos in index_starts:
                    self._index.ensure(pos)
        except OSError as error:
            if error.errno in FULL:
                raise StorageError(
                    f"the disk has no space for another file: {error}", code=Code.DISK_FULL
                ) from error
            raise self._failure.set(f"append: {error}") from error

    def sync(self) -> int:
        self._failure.require_none()
        tail = self._tail
        if self._durable == tail:
            return tail.index
        try:
            self._data.sync()
            self._write_records(*self._reader.pending_records())
        except (StorageError, OSError) as error:
            raise self._failure.after("sync", error) from error
        self._durable = tail
        self._reader.clear_pending()
        self._reader.release_removed()
        covered = self._checkpoint_tail.pos if self._checkpoint_tail is not None else 0
        size = self.data_file_size
        if tail.pos // size != covered // size or tail.pos - covered >= _AUTO_CHECKPOINT_BYTES:
            self._checkpoint_if_room()
        return tail.index

    def _write_records(self, first_index: int, records: bytes) -> None:
        pos = first_index * INDEX_RECORD_SIZE
        while records:
            room = self._index.start_of(pos) + self._index.file_size - pos
            part, records = records[:room], records[room:]
            self._index.write(pos, [part], size=len(part))
            pos += len(part)

    def drop_cached(self, begin_pos: int, end_pos: int) -> None:
        end_pos = min(end_pos, self._durable.pos)
        while begin_pos < end_pos:
            border = min(end_pos, self._data.start_of(begin_pos) + self.data_file_size)
            self._data.drop_cache_of(begin_pos, border)
            begin_pos = border

    def _check_directory(self) -> None:
        """Detect that the directory was removed, moved or recreated and is therefore no longer the locked
        one."""
        if not self._disk.is_at(self._lock_handle, self._paths.lock):
            raise StorageError(f"{self._paths.root} was removed or replaced while in use")

    def _checkpoint_if_room(self) -> None:
        try:
            self.save_checkpoint(self._committed, None)
        except StorageError as error:
            # A checkpoint only shortens the next start; the entries themselves are safe.
            if error.code is not Code.DISK_FULL:
                raise

    def truncate_after(self, index: int, tail: Tail | None = None) -> None:
        assert self._base.index <= index <= self._tail.index, (
            f"truncate after {index}, end {self._tail.index}"
        )
        if index == self._tail.index:
            return
        end_is_damaged = False
        try:
            if index > self._base.index and all(known.after.index != index for known in self._damages):
                assert self.entry(index).ends_batch, f"entry {index} does not end a batch"
            tail = self.tail_at(index)
        except EntryDamaged:
            if tail is None:
                raise
            end_is_damaged = True
        with self._space.files_lock, self._failure.of_writing("truncate"):
            self._generation += 1
            self._reader.cut(index, self._generation)
            self._tail = tail
            self._durable = min(self._durable, tail)
            self._committed = min(self._committed, self._durable.index)
            self._term_runs = [run for run in self._term_runs if run.first_index <= index]
            if end_is_damaged or (self._checkpoint_tail is not None and self._checkpoint_tail.index > index):
                # The next start would take a checkpoint above the end of the log for damage. If the end is
                # damaged, however, that start must know how far the log had reached.
                self._write_checkpoint(self._base)
            # The index first: entries without index records may disappear at any point without being missed.
            self._index.cut((index + 1) * INDEX_RECORD_SIZE)
            self._data.cut(tail.pos)
            self._reader.release_removed()
            self._set_damages(clip(self._damages, self._base, tail))
        self._check()

    # -- purge and reset

    def borders(self) -> list[Base]:
        borders = []
        for start in self._data.starts:
            if self._base.pos < start < self._tail.pos:
                # Next to a damage no border can be proved, and a concurrent purge may have removed it.
                with suppress(EntryDamaged, ReadFailed):
                    borders.append(self._border(start))
        return borders

    def written_ms(self, base: Base) -> int:
        return self._disk.modified_ms(self._data.path_of(base.pos - 1))

    def _border(self, start: int) -> Base:
        first = self._reader.first_index_at(start)
        tail = self.tail_at(first - 1)
        return Base(tail.index, tail.term, start, tail.chain_crc)

    def purge_to(self, base: Base) -> None:
        if base.index <= self._base.index:
            return
        size = self.data_file_size
        assert base.pos % size == 0 and base.index < self._tail.index, f"{base} is no border"
        with suppress(EntryDamaged):  # unreadable: the caller's base is more reliable than the copy on disk
            assert self._border(base.pos) == base, f"{base} is no border: {self._border(base.pos)} is"
        if self._durable.index < base.index:
            self.sync()
        runs = clip_runs(self._term_runs, base, self._tail)
        damages = clip(self._damages, base, self._tail)
        with self._space.files_lock:
            # Record the new start durably first, in two places: a start treats unexplained missing files as
            # damage.
            with self._failure.none_if_full("a purge"), self._failure.of_writing("purge"):
                self._write_checkpoint(base)
                self._save(lambda: write_base(self._disk, self._paths.base, StoredBase(base)))
            with self._failure.of_writing("purge"):
                self._base = base
                self._term_runs = runs
                self._committed = max(self._committed, base.index)
                is_listed = damages == self._damages
                self._damages = damages
                self._reader.change(base, damages)
                # Removing many large files takes a file system seconds; report progress so that it does not
                # look stuck.
                self._index.remove_below((base.index + 1) * INDEX_RECORD_SIZE, self.on_synced)
                self._data.remove_below(base.pos, self.on_synced)
                self._reader.release_removed()
                if not is_listed:
                    self._list_damages_if_room()
        self._check()

    def _list_damages_if_room(self) -> None:
        """Write the list of damages after a purge. If the disk is full, the stored list is merely out of
        date, and the next start clips it to the base."""
        try:
            self._save(lambda: write_damages(self._disk, self._paths.damage, self._damages))
        except OSError as error:
            if error.errno not in FULL:
                raise

    def reset_to(self, base: Base) -> None:
        assert base.pos % self.data_file_size == 0, f"{base} does not end where a data file begins"
        with self._space.files_lock, self._failure.of_writing("reset"):
            self._check_directory()
            resetting = StoredBase(base, resetting=True)
            self._save(lambda: write_base(self._disk, self._paths.base, resetting))
            self._generation += 1
            self._reader.reset(base, self._generation)
            self._base = base
            self._tail = self._durable = self._checkpoint_tail = tail_of(base)
            self._term_runs = []
            self._damages = ()
            self._committed = base.index
            finish_reset(self._disk, self._paths, self._data, self._index, base)
            self._reader.release_removed()
        self._check()

    # -- damage

    def note_damage(self, index: int) -> Damage | None:
        self._failure.require_none()
        index = max(self.begin_index, min(index, self.end_index))
        known = next((known for known in self._damages if known.covers(index)), None)
        if known is not None or self.end_index < self.begin_index:
            return known.damage if known is not None else None
        # Only synced entries have index records, which the search relies on.
        self.sync()
        location = self._reader.guarded(
            lambda: locate(self._data, self._index, self._base, self._tail, index)
        )
        with self._failure.none_if_full("the list of damages"), self._failure.of_writing("note damage"):
            for batch in location.batches:
                self._write_records(batch.first_index, index_records(batch.data))
            if location.damage is None:
                return None
            self._set_damages(merge([*self._damages, location.damage]))
        return next(
            known.damage for known in self._damages if known.covers(location.damage.damage.first_index)
        )

    def repair(self, frames: Frames) -> None:
        known = next((k for k in self._damages if k.damage.first_index == frames.first_index), None)
        if known is None:
            raise StorageError(f"no damage starts at entry {frames.first_index}", code=Code.DATA_DAMAGED)
        repair = self.begin_repair(known.damage)
        try:
            repair.feed(frames)
            if not repair.is_fed:
                text = f"entries {frames.first_index}..{frames.last_index} do not reach the end of the damage"
                raise StorageError(text, code=Code.DATA_DAMAGED)
            while repair.copy(_COPY_BYTES):
                pass
            repair.finish()
        finally:
            repair.abandon()

    def begin_repair(self, damage: Damage) -> Repair:
        self._failure.require_none()
        known = next((known for known in self._damages if known.damage == damage), None)
        if known is None:
            raise StorageError(f"{damage} was repaired or removed in the meantime", code=Code.DATA_DAMAGED)
        generation = self._generation

        def check(repair: Repair) -> None:
            if generation != self._generation or repair.known not in self._damages:
                raise StorageError(
                    "the log changed near the damage during the repair", code=Code.DATA_DAMAGED
                )

        return Repair(
            self._disk,
            self._paths.repair,
            self._data,
            self._reader,
            known,
            tail=lambda: self._tail,
            check=check,
            write_records=self._write_repaired_records,
            install=self._install_repair,
            failed=self._failure.set,
        )

    def _write_repaired_records(self, first_index: int, records: bytes) -> None:
        with self._failure.of_writing("repair"):
            self._write_records(first_index, records)

    def _install_repair(self, repair: Repair) -> None:
        self.sync()
        with self._failure.none_if_full("a repair"), self._failure.of_writing("repair"):
            # Before the files: index records prove to the next start that the good entries were durable.
            self._index.sync()
            repair.install_files()
            self._reader.change(self._base, self._damages)
            self._set_damages(tuple(other for other in self._damages if other != repair.known))
            self._reader.release_removed()

    def scrub(self, from_index: int, max_bytes: int) -> ScrubStep:
        return scrub_step(
            self._reader,
            self._data,
            self._index,
            lambda: self._tail,
            lambda: self._durable,
            from_index,
            max_bytes,
        )

    def _set_damages(self, damages: tuple[KnownDamage, ...]) -> None:
        """Store the list before reads use it, because a damage that reads have reported must still be known
        after a crash."""
        if damages != self._damages:
            self._save(lambda: write_damages(self._disk, self._paths.damage, damages))
        self._damages = damages
        self._reader.change(self._base, damages)

    # -- term and vote, checkpoint, sessions

    def save_hard_state(self, state: HardState) -> None:
        old = self._hard_state
        assert (state.incarnation, state.term) >= (old.incarnation, old.term), f"{state} after {old}"
        assert state.term >= old.term, f"{state} after {old}"
        with self._failure.of_writing("hard state"):
            self._check_directory()
            self._save(lambda: self._write_hard_state(state))
        self._hard_state = state

    def _write_hard_state(self, state: HardState) -> None:
        old = self._hard_state
        if self._list_is_unsaved and (state.term, state.voted_for) != (old.term, old.voted_for):
            with self._identity_lock:
                save_identity(self._disk, self._paths, self.identity)
            self._list_is_unsaved = False
        if state.memberships:
            self._note_change()
        self._space.state_written(write_hard_state(self._disk, self._paths.hard_state, state))

    def _note_change(self) -> None:
        """Mark the directory as one that an older release must not use. Any thread."""
        with self._identity_lock:
            self.identity = note_change(self._disk, self._paths, self.identity)

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        assert sessions is None or sessions[0] <= committed_index, "a session table that may be undone"
        if sessions is not None and sessions[0] > self._durable.index:
            # ASYNC_FLUSH: a session table must not be durable before the entries it is derived from
            self.sync()
        # On a full disk the existing files remain: only the next start takes longer.
        with self._failure.none_if_full("a checkpoint"), self._failure.of_writing("checkpoint"):
            self._check_directory()
            self._committed = max(self._committed, min(committed_index, self._durable.index))
            self._write_checkpoint(self._base)
            if sessions is not None:
                write_sessions(self._disk, self._paths.sessions, *sessions)
                self.on_synced()

    def _write_checkpoint(self, base: Base) -> None:
        """Make the index records durable, then write a checkpoint, which relies on them."""
        self._index.sync()
        self.on_synced()
        tail = self._durable
        runs = tuple(clip_runs(self._term_runs, base, tail))
        checkpoint = Checkpoint(tail, max(self._committed, base.index), base, runs)
        self._save(lambda: write_checkpoint(self._disk, self._paths.checkpoint, checkpoint))
        self._checkpoint_tail = tail

    def load_sessions(self) -> tuple[int, bytes] | None:
        try:
            table = read_sessions(self._disk, self._paths.sessions)
        except OSError as error:
            raise StorageError(f"cannot read {self._paths.sessions}: {error}") from error
        return table if table is not None and table[0] <= self._tail.index else None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._failure.reason is None:
                self.sync()
                self._checkpoint_if_room()
        finally:
            with self._space.files_lock:
                self._space.is_closed = True
                self._data.close()
                self._index.close()
                self._disk.close(self._lock_handle)

    # -- reading

    def entry(self, index: int) -> EntryHeader:
        return self._reader.entry(index)

    def tail_at(self, index: int) -> Tail:
        return self._reader.tail_at(index)

    def read(self, first_index: int, last_index: int, max_bytes: int, *, whole_batches: bool) -> Frames:
        return self._reader.read(first_index, last_index, max_bytes, whole_batches=whole_batches)

    def read_bodies(self, spans: Sequence[Span], end_pos: int) -> list[bytes]:
        return self._reader.read_bodies(spans, min(end_pos, self._tail.pos))

    def index_at_pos(self, pos: int) -> int:
        return self._reader.index_at_pos(pos)

    def iter_heads(self, from_index: int) -> Iterator[BatchHead]:
        return self._reader.iter_heads(from_index)

    def _save(self, write: Callable[[], None]) -> None:
        """Write a small file, using the reserve if necessary."""
        self._space.writing(write)
        self.on_synced()
