"""A SimDisk that checks in which order a store makes its files durable.

A crash test finds a wrong order only if a crash falls between the two operations and tears the right sectors.
This disk checks the order itself, at each operation, so that any run without a crash finds it, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from dledger.store.disk import Buffer
from dledger.store.format.layout import (
    INDEX_RECORD_SIZE,
    IndexRecord,
    NodePaths,
    file_name,
    index_file_size,
    start_of,
    unpack_record,
)
from dledger.store.format.properties import is_intact, parse_properties
from dledger.testing.virtual.sim_disk import SimDisk
from dledger.testing.virtual.violation import Violation


class OrderedDisk(SimDisk):
    """Raises Violation when an operation would, after a crash, leave a promise without its ground:

    - an index record says that its entry was durable (rule 10: else a torn write looks like damage);
    - a checkpoint says that the log and its index are durable up to its end, a session table that the log is;
    - a name that replaces another one has its whole content (rule 2 for the term and vote);
    - bytes that are removed are missed by no durable index record, checkpoint or base.
    """

    def __init__(self, root: Path, data_file_size: int, *, capacity: int = 1 << 40) -> None:
        super().__init__(capacity=capacity)
        self._paths = NodePaths(root)
        self._data_size = data_file_size
        self._index_size = index_file_size(data_file_size)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        path = self._handle(handle).path
        start = start_of(path.name)
        if path.parent == self._paths.index_files and start is not None:
            for record in _records(b"".join(bytes(buffer) for buffer in buffers), start + offset):
                if not self._is_stored(self._paths.data, record.pos, record.pos + record.size):
                    raise Violation("write order", f"a record of entry {record.index}, which is not durable")
        return super().pwritev(handle, buffers, offset)

    def rename(self, old: Path, new: Path) -> None:
        if not self.is_content_durable(old):
            raise Violation("write order", f"{new} is replaced by a file that is not durable")
        if new == self._paths.checkpoint:
            self._check_checkpoint(old)
        elif new == self._paths.sessions:
            self._check_sessions(old)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._check_removal(path, 0)
        super().unlink(path)

    def truncate(self, handle: int, size: int) -> None:
        found = self._handle(handle)
        if size < len(found.file.cache):
            self._check_removal(found.path, size)
        super().truncate(handle, size)

    # -- inside

    def _check_checkpoint(self, path: Path) -> None:
        end = _numbers(self.content(path))
        if end["endIndex"] < end["beginIndex"]:
            return
        first, last = end["beginIndex"] * INDEX_RECORD_SIZE, (end["endIndex"] + 1) * INDEX_RECORD_SIZE
        if not self._is_stored(self._paths.data, end["basePos"], end["endPos"]):
            raise Violation("write order", f"a checkpoint at {end['endIndex']}: entries are not durable")
        if not self._is_stored(self._paths.index_files, first, last):
            raise Violation("write order", f"a checkpoint at {end['endIndex']}: the index is not durable")

    def _check_sessions(self, path: Path) -> None:
        (index,) = struct.unpack_from(">q", self.content(path), 4)
        end = _numbers(self.durable_content(self._paths.checkpoint)).get("endIndex", -1)
        if index > end:
            raise Violation("write order", f"a session table of {index}, the checkpoint is of {end}")

    def _check_removal(self, path: Path, kept: int) -> None:
        """Of a file of the log from its first `kept` bytes on."""
        start = start_of(path.name)
        if start is None or path.parent not in (self._paths.data, self._paths.index_files):
            return
        is_data = path.parent == self._paths.data
        end = start + (self._data_size if is_data else self._index_size)
        base, checkpoint = (
            _numbers(self.durable_content(p)) for p in (self._paths.base, self._paths.checkpoint)
        )
        if base.get("resetting"):
            return
        begin = max(base.get("baseIndex", -1), checkpoint.get("beginIndex", 0) - 1)
        begin_pos = max(base.get("basePos", 0), checkpoint.get("basePos", 0))
        if end <= (begin_pos if is_data else (begin + 1) * INDEX_RECORD_SIZE):
            return
        cut = start + kept
        covered = checkpoint.get("endPos" if is_data else "endIndex", -1)
        if covered > begin and cut < (covered if is_data else (covered + 1) * INDEX_RECORD_SIZE):
            raise Violation("write order", f"{path} loses what the checkpoint covers, from {cut} on")
        if is_data:
            for record in self._durable_records():
                if record.index > begin and cut < record.pos + record.size:
                    raise Violation("write order", f"{path} loses entry {record.index}, which has a record")

    def _durable_records(self) -> Iterator[IndexRecord]:
        """Those that agree with what they point to: a bit may have flipped in the others."""
        for path in self.files():
            start = start_of(path.name)
            if path.parent != self._paths.index_files or start is None:
                continue
            for record in _records(self.durable_content(path), start):
                offset = record.pos % self._data_size
                data = self.durable_content(self._paths.data / file_name(record.pos - offset))
                if data[offset + 4 : offset + 24] == struct.pack(
                    ">iqq", record.size, record.index, record.term
                ):
                    yield record

    def _is_stored(self, directory: Path, begin: int, end: int) -> bool:
        """Are these positions of the data or the index durable?"""
        size = self._data_size if directory == self._paths.data else self._index_size
        while begin < end:
            start = begin - begin % size
            until = min(end, start + size)
            if not self.is_durable(directory / file_name(start), begin - start, until - begin):
                return False
            begin = until
        return True


def _numbers(content: bytes) -> dict[str, int]:
    """The values of a state file that are numbers; none if it is missing or broken."""
    if not is_intact(content):
        return {}
    return {k: int(v) for k, v in parse_properties(content).items() if v.lstrip("-").isdecimal()}


def _records(data: bytes, pos: int) -> Iterator[IndexRecord]:
    """The index records in `data`, which is at this position of the index."""
    skip = -pos % INDEX_RECORD_SIZE
    for at in range(skip, len(data) - INDEX_RECORD_SIZE + 1, INDEX_RECORD_SIZE):
        record = unpack_record(data, at)
        if record.is_plausible((pos + at) // INDEX_RECORD_SIZE):
            yield record
