"""One ConsumeQueue: the units of a (topic, queue id), in files of equal size.

The file that starts with unit n is named after byte n * 20, in 20 digits, and holds `units_per_file` units
(RocketMQ: `consumequeue/<topic>/<queue id>/<start>`). Its unwritten part is zeros. One thread appends units;
any thread may read them. `max_offset` increases only after units are written, so that readers never see
missing units.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from operator import lt
from pathlib import Path
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import ReadFailed, Status, StoredDataDamaged
from broker_adapter.store.open_files import OpenFiles
from broker_adapter.wire.consume_queue_unit import FILLER_SIZE, UNIT_SIZE, ConsumeQueueUnit, decode_units

# Maximum units per read.
MAX_READ_UNITS = 32_768


class QueueState(NamedTuple):
    """State of a queue in a checkpoint.

    `crcs`: CRC32 of each file from its first byte to its last unit. The last file contains the newest unit.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    floor: int
    crcs: tuple[int, ...]


class CheckpointMismatch(Exception):
    """Raised when derived files do not match their checkpoint."""


class ConsumeQueue:
    """A queue with readable units from `min_offset` up to, but not including, `max_offset`.

    `floor`: minimum offset according to the *log*, equal on every node: the end of the queue when its topic
    was last deleted, the first offset of an imported queue, or 0. Purging raises only `min_offset`.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        files: OpenFiles,
        units_per_file: int,
        *,
        keeps_last: bool = False,
    ) -> None:
        """Create an empty queue.

        `keeps_last`: keep the file with the newest unit even if all its units are purged, unless the topic
        was deleted. For other programs, this file is the only record of the queue's end.
        """
        self._keeps_last = keeps_last
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self.floor = 0
        self._directory = directory
        self._files = files
        self._units_per_file = units_per_file
        self._file_size = units_per_file * UNIT_SIZE
        self._last_path = -1, directory
        self._crcs: list[int] = []  # one per kept file, consecutive; the last file is appended to
        self._retired: tuple[int, int] | None = None  # number and CRC32 of a file that may be reused

    # -- for readers, from any thread --------------------------------------------------------------------

    def read(self, offset: int, count: int) -> list[ConsumeQueueUnit]:
        """Return up to `count` units starting at `offset`. Returns at least one, unless `offset` is the end
        of the queue.

        Raises ReadFailed (OFFSET_BELOW_MINIMUM, OFFSET_ABOVE_MAXIMUM) for an offset outside the queue, and
        StoredDataDamaged (UNIT_DAMAGED) for bytes that are not valid units. A valid unit may still refer to
        the wrong record; only reading the record can detect this.
        """
        end = self.max_offset
        if offset > end:
            raise ReadFailed(
                Status.OFFSET_ABOVE_MAXIMUM, f"offset {offset} is beyond the end of {self} at {end}"
            )
        self._check_minimum(offset)
        try:
            units = decode_units(self._stored(offset, min(count, end - offset, MAX_READ_UNITS)))
        except FileNotFoundError:
            self._check_minimum(offset)  # purged meanwhile
            if offset >= self.max_offset:  # another incarnation of the queue has started meanwhile
                text = f"{self} ends at {self.max_offset}, before offset {offset}"
                raise ReadFailed(Status.OFFSET_ABOVE_MAXIMUM, text) from None
            raise self._damaged(f"the file with offset {offset} is missing") from None
        if units and not _are_in_order(units):
            self._check_minimum(offset)  # purged and recreated meanwhile
            raise self._damaged(f"there are invalid units among the {len(units)} starting at offset {offset}")
        return units

    def offset_by_time(self, timestamp_ms: int, store_time_of: Callable[[ConsumeQueueUnit], int]) -> int:
        """Return the first offset whose message was stored at or after this time, or max_offset if there is
        none.

        `store_time_of` returns the store timestamp (ms) of a unit's message. Raises the errors of `read`.
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            try:
                unit = self.read(middle, 1)[0]
            except ReadFailed:
                low = max(low, self.min_offset)  # purged meanwhile
                high = max(low, high)
                continue
            if store_time_of(unit) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic}"

    # -- for the writer's thread -------------------------------------------------------------------------

    def append(self, offset: int, units: bytes) -> None:
        """Append units, the first of which has the queue offset `offset`. Existing units that are equal are
        skipped.

        Raises StoredDataDamaged: QUEUE_ORDER if there would be a gap, UNIT_DAMAGED if existing units differ.
        """
        known = self.max_offset - offset
        if known < 0:
            raise StoredDataDamaged(
                Status.QUEUE_ORDER,
                f"{self}: the next unit is for offset {offset}, expected {self.max_offset}",
            )
        if known:
            count = min(known, len(units) // UNIT_SIZE)
            if offset < self.min_offset or self._stored(offset, count) != units[: count * UNIT_SIZE]:
                raise self._damaged(f"the existing units starting at offset {offset} differ")
            units = units[count * UNIT_SIZE :]
        at = self.max_offset
        while units:
            number, within = divmod(at, self._units_per_file)
            piece = units[: (self._units_per_file - within) * UNIT_SIZE]
            self._write(number, within * UNIT_SIZE, piece)
            at += len(piece) // UNIT_SIZE
            units = units[len(piece) :]
        self.max_offset = at

    def begin_at(self, offset: int) -> None:
        """Set the first offset of an empty queue that has no files."""
        assert not self._crcs, f"{self} has files"
        self.min_offset = self.max_offset = offset

    def continue_after(self, path: Path, offset: int) -> None:
        """Set the first offset of an empty queue.

        If an existing file has the right path and size, append to it.
        """
        self.begin_at(offset)
        number = (offset - 1) // self._units_per_file
        if path == self._path(number) and self._files.size(path) == self._file_size:
            end = (offset - number * self._units_per_file) * UNIT_SIZE
            self._crcs = [crc32(self._files.read(path, end, 0))]
            self._files.cut(path, end)

    def restart_at(self, offset: int) -> None:
        """Set the first offset of a queue whose files were removed."""
        self._crcs.clear()
        self._retired = None
        self.begin_at(offset)

    def raise_floor(self) -> list[Path]:
        """Make all units unreadable. Returns the files that are no longer needed."""
        self.floor = self.max_offset
        return self._raise_minimum(self.max_offset)

    def purge_below(self, physical_offset: int) -> list[Path]:
        """Raise min_offset to the first message at or after this physical offset.

        Returns the files that are no longer needed.
        """
        offsets = range(self.min_offset, self.max_offset)
        if not offsets or self._physical_offset(offsets[0]) >= physical_offset:
            return []
        kept = bisect_left(offsets, physical_offset, lo=1, key=self._physical_offset)
        return self._raise_minimum(self.min_offset + kept)

    def retire(self) -> list[Path]:
        """Release the files of a queue that has no readable units.

        Returns the files to remove once a checkpoint with the queue's `state` is durable. A message that
        arrives earlier is appended to the last of these files.
        """
        if self.min_offset < self.max_offset or not self._crcs or self._is_kept:
            return []
        paths, first = self.paths(), self._first_file
        self._retired = first + len(self._crcs) - 1, self._crcs[-1]
        self._crcs.clear()
        for path in paths:
            self._files.retire(path)
        return paths

    def state(self) -> QueueState:
        return QueueState(
            self.topic, self.queue_id, self.min_offset, self.max_offset, self.floor, tuple(self._crcs)
        )

    def restore(self, state: QueueState) -> None:
        """Restore the state of a checkpoint and remove later units. Raises CheckpointMismatch."""
        self.min_offset, self.max_offset, self.floor = state.min_offset, state.max_offset, state.floor
        self._crcs = list(state.crcs)
        if not 0 <= self.min_offset <= self.max_offset or not 0 <= self.floor <= self.max_offset:
            raise CheckpointMismatch(
                f"{self}: inconsistent offsets: {self.min_offset} to {self.max_offset}, floor {self.floor}"
            )
        first = self._first_file
        empty = self.min_offset == self.max_offset and not self._crcs
        if not empty and (first < 0 or first * self._units_per_file > self.min_offset):
            raise CheckpointMismatch(
                f"{self}: {len(self._crcs)} files cannot contain all units starting at {self.min_offset}"
            )
        for number, crc in enumerate(self._crcs, first):
            path = self._path(number)
            end = min((self.max_offset - number * self._units_per_file) * UNIT_SIZE, self._file_size)
            size = self._files.size(path)
            if size != self._file_size:
                raise CheckpointMismatch(f"{path} is {size} bytes long, expected {self._file_size}")
            if crc32(self._files.read(path, end, 0)) != crc:
                raise CheckpointMismatch(f"{path}: the first {end} bytes do not match CRC {crc:#010x}")
            if end < self._file_size:
                self._files.cut(path, end)

    def paths(self) -> list[Path]:
        """Return the paths of the files that are kept."""
        first = self._first_file
        return [self._path(number) for number in range(first, first + len(self._crcs))]

    # -- internals ---------------------------------------------------------------------------------------

    @property
    def _first_file(self) -> int:
        return (self.max_offset - 1) // self._units_per_file - len(self._crcs) + 1

    def _path(self, number: int) -> Path:
        known, path = self._last_path
        if known != number:  # cached, because building a path costs more than a small write
            path = self._directory / f"{number * self._file_size:020d}"
            self._last_path = number, path
        return path

    def _write(self, number: int, within: int, data: bytes) -> None:
        path = self._path(number)
        if not self._crcs:
            self._crcs.append(self._begin_file(number, within, path))
        elif not within:
            self._files.create(path, self._file_size)
            self._crcs.append(0)
        self._files.write(path, data, within)
        self._crcs[-1] = crc32(data, self._crcs[-1])

    def _begin_file(self, number: int, within: int, path: Path) -> int:
        """Return the CRC32 of the bytes before the first unit, which are zeros or the contents of a retired
        file.

        A retired file is not recreated, because the durable checkpoint may still refer to it.
        """
        retired, self._retired = self._retired, None
        if within and retired is not None and retired[0] == number and self._files.take_back(path):
            return retired[1]
        self._files.create(path, self._file_size)
        return crc32(bytes(within))

    def _stored(self, offset: int, count: int) -> bytes:
        parts = []
        while count > 0:
            number, within = divmod(offset, self._units_per_file)
            part_count = min(count, self._units_per_file - within)
            part = self._files.read(self._path(number), part_count * UNIT_SIZE, within * UNIT_SIZE)
            if len(part) != part_count * UNIT_SIZE:
                raise self._damaged(f"the file with offset {offset} is too short")
            parts.append(part)
            offset += part_count
            count -= part_count
        return b"".join(parts)

    def _physical_offset(self, offset: int) -> int:
        return self.read(offset, 1)[0].physical_offset

    @property
    def _is_kept(self) -> bool:
        return self._keeps_last and self.floor < self.max_offset

    def _raise_minimum(self, offset: int) -> list[Path]:
        self.min_offset = offset
        needless = max(0, offset // self._units_per_file - self._first_file)
        if self._is_kept:
            needless = min(needless, len(self._crcs) - 1)
        paths = self.paths()[:needless]
        del self._crcs[: len(paths)]
        for path in paths:
            self._files.retire(path)
        return paths

    def _check_minimum(self, offset: int) -> None:
        if offset < self.min_offset:
            raise ReadFailed(
                Status.OFFSET_BELOW_MINIMUM,
                f"offset {offset} is before the start of {self} at {self.min_offset}",
            )

    def _damaged(self, problem: str) -> StoredDataDamaged:
        return StoredDataDamaged(Status.UNIT_DAMAGED, f"{self}: {problem}")


def _are_in_order(units: list[ConsumeQueueUnit]) -> bool:
    """True if the units may belong to consecutive messages of the log. Called by every pull."""
    offsets, sizes, _ = zip(*units, strict=True)
    if offsets[0] < 0 or min(sizes) <= 0:
        return False
    if max(sizes) < FILLER_SIZE:
        return all(map(lt, offsets, offsets[1:]))
    # A filler has the physical offset of the next message (`dispatching`).
    return all(
        unit[0] < after[0] or (unit[0] == after[0] and unit.size == FILLER_SIZE)
        for unit, after in pairwise(units)
    )
