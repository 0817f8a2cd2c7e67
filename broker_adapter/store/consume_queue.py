"""One ConsumeQueue: the units of a (topic, queue id), in files of equal size.

The file that begins with unit n is called by byte n * 20, in 20 digits, and has room for `units_per_file`
units (RocketMQ: `consumequeue/<topic>/<queue id>/<start>`); what was never written of it is zeros. Units are
appended by one thread and read by any. `max_offset` grows when they are in the file, so that readers never
see one that is not.
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
from broker_adapter.format.consume_queue_unit import FILLER_SIZE, UNIT_SIZE, ConsumeQueueUnit, decode_units
from broker_adapter.store.open_files import OpenFiles

#: One read gives no more units, whatever is asked for.
MAX_READ_UNITS = 32_768


class QueueState(NamedTuple):
    """What a checkpoint says of a queue.

    `crcs` are those of its files, the last of which holds the newest unit: each is the CRC32 of a file from
    its first byte to its last unit.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    floor: int
    crcs: tuple[int, ...]


class Disagreement(Exception):
    """Derived files are not what their checkpoint says they are."""


class ConsumeQueue:
    """`min_offset` is the first offset that can be read, `max_offset` one behind the last.

    `floor` is the least offset that the *log* gives the queue, the same on every node: where the topic was
    deleted for the last time, else 0. What was purged raises min_offset alone.
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
        """`keeps_last`: the file with the newest unit stays when that cannot be read any more, unless the
        topic was deleted: it alone tells others how far the queue has come."""
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
        self._crcs: list[int] = []  # of the files that are kept: consecutive, the last one is written to
        self._retired: tuple[int, int] | None = None  # number and CRC32 of a file that may be taken back

    # -- for readers, from any thread -------------------------------------------------------------------

    def read(self, offset: int, count: int) -> list[ConsumeQueueUnit]:
        """Up to `count` units from an offset on, at least one unless the offset is the end of the queue.

        ReadFailed with OFFSET_BELOW_MINIMUM or OFFSET_ABOVE_MAXIMUM outside of the queue. StoredDataDamaged
        (UNIT_DAMAGED) for what cannot be units of messages; that what can is the message's own unit, the
        record tells.
        """
        end = self.max_offset
        if offset > end:
            raise ReadFailed(Status.OFFSET_ABOVE_MAXIMUM, f"{self} has no offset {offset}, it ends at {end}")
        self._check_minimum(offset)
        try:
            units = decode_units(self._stored(offset, min(count, end - offset, MAX_READ_UNITS)))
        except FileNotFoundError:
            self._check_minimum(offset)  # purged meanwhile
            raise self._damaged(f"the file with offset {offset} is missing") from None
        if units and not _are_in_order(units):
            self._check_minimum(offset)  # let go meanwhile, and its file made anew
            raise self._damaged(f"not all of {len(units)} units from offset {offset} on can be messages")
        return units

    def offset_by_time(self, timestamp_ms: int, store_time_of: Callable[[ConsumeQueueUnit], int]) -> int:
        """The first offset whose message was stored at this time or later; max_offset if there is none.

        `store_time_of` gives the store timestamp (ms) of a unit's message. Errors are those of `read`.
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

    # -- for the writer's thread ------------------------------------------------------------------------

    def append(self, offset: int, units: bytes) -> None:
        """Append units, the first of which belongs at `offset`. Equal ones that are there already are passed.

        StoredDataDamaged with QUEUE_ORDER for a gap, with UNIT_DAMAGED for others than are there.
        """
        known = self.max_offset - offset
        if known < 0:
            raise StoredDataDamaged(
                Status.QUEUE_ORDER, f"{self}: a unit for offset {offset}, the next one is {self.max_offset}"
            )
        if known:
            count = min(known, len(units) // UNIT_SIZE)
            if offset < self.min_offset or self._stored(offset, count) != units[: count * UNIT_SIZE]:
                raise self._damaged(f"other units than there are, from offset {offset} on")
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
        """Let an empty queue, of which there are no files, begin here."""
        assert not self._crcs, f"{self} has files"
        self.min_offset = self.max_offset = offset

    def go_on_behind(self, path: Path, offset: int) -> None:
        """Let an empty queue begin here, in this file if it is as those of this queue are."""
        self.begin_at(offset)
        number = (offset - 1) // self._units_per_file
        if path == self._path(number) and self._files.size(path) == self._file_size:
            end = (offset - number * self._units_per_file) * UNIT_SIZE
            self._crcs = [crc32(self._files.read(path, end, 0))]
            self._files.cut(path, end)

    def begin_again(self, offset: int) -> None:
        """Let the queue, whose files were removed, begin here."""
        self._crcs.clear()
        self._retired = None
        self.begin_at(offset)

    def raise_floor(self) -> list[Path]:
        """Let nothing be readable of what there is. Returns the files that are not needed any more."""
        self.floor = self.max_offset
        return self._raise_minimum(self.max_offset)

    def purge_below(self, physical_offset: int) -> list[Path]:
        """Raise min_offset to the first message at this physical offset or later; as `raise_floor`."""
        offsets = range(self.min_offset, self.max_offset)
        if not offsets or self._physical_offset(offsets[0]) >= physical_offset:
            return []
        kept = bisect_left(offsets, physical_offset, lo=1, key=self._physical_offset)
        return self._raise_minimum(self.min_offset + kept)

    def retire(self) -> list[Path]:
        """A queue in which nothing can be read needs no file. Returns those that may go when a checkpoint of
        its `state` is durable; if a message comes earlier, the queue goes on in the last of them."""
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
        """Become what a checkpoint says, cut what is beyond. Disagreement if the files are not like that."""
        self.min_offset, self.max_offset, self.floor = state.min_offset, state.max_offset, state.floor
        self._crcs = list(state.crcs)
        if not 0 <= self.min_offset <= self.max_offset or not 0 <= self.floor <= self.max_offset:
            raise Disagreement(f"{self}: offsets {self.min_offset} to {self.max_offset}, floor {self.floor}")
        first = self._first_file
        empty = self.min_offset == self.max_offset and not self._crcs
        if not empty and (first < 0 or first * self._units_per_file > self.min_offset):
            raise Disagreement(
                f"{self}: {len(self._crcs)} files cannot hold the units from {self.min_offset}"
            )
        for number, crc in enumerate(self._crcs, first):
            path = self._path(number)
            end = min((self.max_offset - number * self._units_per_file) * UNIT_SIZE, self._file_size)
            size = self._files.size(path)
            if size != self._file_size:
                raise Disagreement(f"{path} has {size} bytes, not {self._file_size}")
            if crc32(self._files.read(path, end, 0)) != crc:
                raise Disagreement(f"{path}: its first {end} bytes do not sum to {crc:#010x}")
            if end < self._file_size:
                self._files.cut(path, end)

    def paths(self) -> list[Path]:
        """Of the files that are kept."""
        first = self._first_file
        return [self._path(number) for number in range(first, first + len(self._crcs))]

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _first_file(self) -> int:
        return (self.max_offset - 1) // self._units_per_file - len(self._crcs) + 1

    def _path(self, number: int) -> Path:
        known, path = self._last_path
        if known != number:  # making paths, and comparing others than itself, is dearer than a small write
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
        """The CRC32 of what is before the first unit: zeros, or what a retired file has. That one is not made
        anew: the durable checkpoint may name it still."""
        retired, self._retired = self._retired, None
        if within and retired is not None and retired[0] == number and self._files.take_back(path):
            return retired[1]
        self._files.create(path, self._file_size)
        return crc32(bytes(within))

    def _stored(self, offset: int, count: int) -> bytes:
        parts = []
        while count > 0:
            number, within = divmod(offset, self._units_per_file)
            here = min(count, self._units_per_file - within)
            part = self._files.read(self._path(number), here * UNIT_SIZE, within * UNIT_SIZE)
            if len(part) != here * UNIT_SIZE:
                raise self._damaged(f"the file with offset {offset} is too short")
            parts.append(part)
            offset += here
            count -= here
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
                Status.OFFSET_BELOW_MINIMUM, f"{self} begins at {self.min_offset}, not at {offset}"
            )

    def _damaged(self, problem: str) -> StoredDataDamaged:
        return StoredDataDamaged(Status.UNIT_DAMAGED, f"{self}: {problem}")


def _are_in_order(units: list[ConsumeQueueUnit]) -> bool:
    """Whether all can be units of messages that follow each other in the log. Every pull comes by here."""
    offsets, sizes, _ = zip(*units, strict=True)
    if offsets[0] < 0 or min(sizes) <= 0:
        return False
    if max(sizes) < FILLER_SIZE:
        return all(map(lt, offsets, offsets[1:]))
    # A filler is where the message after it is (`dispatching`).
    return all(
        one[0] < after[0] or (one[0] == after[0] and one.size == FILLER_SIZE)
        for one, after in pairwise(units)
    )
