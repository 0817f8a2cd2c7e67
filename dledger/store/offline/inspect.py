"""Inspects a node's directory without changing it, even if a server is running or the directory is
damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from zlib_ng.zlib_ng import crc32

from dledger.core.values import ENTRY_HEADER_SIZE, Base, HardState
from dledger.errors import ReadFailed, StorageError
from dledger.infra.files.disk import Disk, OsDisk
from dledger.store.api import Damage
from dledger.store.damage import clip_to_base, make_damage, read_damages, resume
from dledger.store.files import FileSequence
from dledger.store.format.batch import (
    MAGIC_BLANK,
    MAGIC_INTERNAL,
    Batch,
    chain_of,
    unpack_header,
)
from dledger.store.format.layout import (
    DEFAULT_DATA_FILE_SIZE,
    INDEX_RECORD_SIZE,
    NodePaths,
    index_file_size,
    unpack_record,
)
from dledger.store.identity import Identity, load_identity
from dledger.store.image_files import ImageFiles, ImageManifest
from dledger.store.recovery import choose_base
from dledger.store.scan import LogEndState, LogScanner, judge_end
from dledger.store.state_files import (
    Checkpoint,
    StoredBase,
    read_base,
    read_checkpoint,
    read_hard_state,
    tail_of,
)

T = TypeVar("T")


class FileReport(NamedTuple):
    """One data or index file."""

    path: Path
    start: int  # position of its first byte in its stream
    length: int  # bytes


class EntryReport(NamedTuple):
    """The stored header of an entry, and the result of its checksums."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    pos: int
    size: int
    channel: int
    magic: int
    chain_crc: int
    body_crc_ok: bool
    chain_crc_ok: bool
    indexed: bool  # a matching index record exists


@dataclass(slots=True)
class DirectoryReport:
    """The content of a directory. Unreadable parts are None, and `problems` names them."""

    directory: Path
    identity: Identity | None = None
    hard_state: HardState | None = None
    checkpoint: Checkpoint | None = None
    data_files: list[FileReport] = field(default_factory=list)
    index_files: list[FileReport] = field(default_factory=list)
    base: Base | None = None  # the last purged entry
    resetting: bool = False  # the removal of the whole log has started; the next start completes it
    prepared_files: list[FileReport] = field(default_factory=list)  # data files after the end, still empty
    damages: list[Damage] = field(default_factory=list)  # found now, followed by good entries
    noted_damages: list[Damage] = field(default_factory=list)  # recorded by the node
    image: ImageManifest | None = None  # the newest state image
    begin_index: int = 0
    end_index: int = -1  # of the last good batch
    end_term: int = -1
    end_pos: int = 0
    entry_count: int = 0
    batch_count: int = 0
    unindexed_count: int = 0  # good entries without a matching index record: not synced yet, or lost
    verdict: LogEndState = LogEndState.CLEAN  # of `inspect_directory`: DAMAGED also with `problems`
    verdict_reason: str = ""  # names the first bad entry, its file and offset
    problems: list[str] = field(default_factory=list)


def inspect_directory(directory: Path | str, *, disk: Disk | None = None) -> DirectoryReport:
    """Read and verify the whole log. Faults in the directory are reported and never raised.

    While a server writes to the directory, the end may look torn or damaged for a moment.
    """
    inspection = _Inspection(directory, disk or OsDisk())
    try:
        return inspection.report()
    finally:
        inspection.close()


def list_entries(
    directory: Path | str, first_index: int = 0, last_index: int | None = None, *, disk: Disk | None = None
) -> Iterator[EntryReport]:
    """Iterate over the headers of entries in file order, including damaged ones, as long as their sizes lead
    to the next entry.

    Starts at the indexed position of `first_index`, or else at the start of the log.
    """
    inspection = _Inspection(directory, disk or OsDisk())
    try:
        yield from inspection.entries(first_index, last_index)
    finally:
        inspection.close()


class StoredEntry(NamedTuple):
    """An entry of a whole batch whose checksums and chain match."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    pos: int
    internal: bool  # an entry of the log itself, not of a user
    body: bytes
    chain_crc: int


class OfflineLog:
    """The log of a node's directory, read from its files. Changes nothing and needs no server.

    `report` describes the directory and, after the end of `entries`, the end of the log. A torn end is
    ignored; damaged ranges are skipped and reported. Faults in the directory are never raised.
    """

    def __init__(self, directory: Path | str, *, disk: Disk | None = None) -> None:
        self._inspection = _Inspection(directory, disk or OsDisk())
        self.report = self._inspection.begin_report()

    def entries(self) -> Iterator[StoredEntry]:
        """Iterate over all good entries, in order. Holds one batch and a window of 4 MiB in memory."""
        for batch in self._inspection.batches(self.report):
            at, data = 0, bytes(batch.data)
            while at < len(data):
                header = unpack_header(data, at)
                body = data[at + ENTRY_HEADER_SIZE : at + header.size]
                internal = header.magic == MAGIC_INTERNAL
                yield StoredEntry(header.index, header.term, header.pos, internal, body, header.chain_crc)
                at += header.size

    def close(self) -> None:
        self._inspection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Inspection:
    def __init__(self, directory: Path | str, disk: Disk) -> None:
        self._disk = disk
        self._paths = NodePaths(Path(directory))
        self._problems: list[str] = []
        self._identity = self._attempt(lambda: load_identity(self._paths.root, disk=disk, unfinished=True))
        self._checkpoint = self._attempt(lambda: read_checkpoint(disk, self._paths.checkpoint))
        size = self._identity.data_file_size if self._identity else DEFAULT_DATA_FILE_SIZE
        self._data = FileSequence(disk, self._paths.data, size, write=False)
        self._index = FileSequence(disk, self._paths.index_files, index_file_size(size), write=False)
        for files in (self._data, self._index):
            self._attempt(files.load)
        self._stored_base: StoredBase | None = self._attempt(lambda: read_base(disk, self._paths.base))
        self._base = self._find_base()

    def close(self) -> None:
        self._data.close()
        self._index.close()

    def _attempt(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (StorageError, FileNotFoundError) as error:
            self._problems.append(str(error))
            return None

    def _find_base(self) -> Base | None:
        if self._stored_base is not None and self._stored_base.resetting:
            return self._stored_base.base
        return self._attempt(lambda: choose_base(self._data, self._checkpoint, self._stored_base))

    def report(self) -> DirectoryReport:
        report = self.begin_report()
        for batch in self.batches(report):
            self._count(report, batch)
        report.prepared_files = [file for file in report.data_files if file.start > report.end_pos]
        for files in (report.data_files, report.index_files):
            for before, after in pairwise(files):
                if before.start + before.length != after.start:
                    report.problems.append(f"{before.path} ends before {after.path} starts")
        self._check_image(report)
        if report.problems and report.verdict is not LogEndState.DAMAGED:
            report.verdict = LogEndState.DAMAGED
            reasons = (report.verdict_reason, "the directory has problems, listed separately")
            report.verdict_reason = "; ".join(filter(None, reasons))
        return report

    def _check_image(self, report: DirectoryReport) -> None:
        images = ImageFiles(self._disk, self._paths.images)
        if not self._disk.exists(self._paths.images):
            return
        self._attempt(images.find)
        newest = images.newest
        if newest is not None:
            report.image = newest
            try:
                for _ in images.chunks(newest, range(len(newest.crcs))):
                    pass
            except (StorageError, ReadFailed) as error:
                report.problems.append(str(error))

    def begin_report(self) -> DirectoryReport:
        """Report everything that can be determined without reading the log."""
        report = DirectoryReport(
            self._paths.root,
            self._identity,
            self._attempt(lambda: read_hard_state(self._disk, self._paths.hard_state)),
            self._checkpoint,
            _files(self._data),
            _files(self._index),
            base=self._base,
            resetting=self._stored_base is not None and self._stored_base.resetting,
            problems=self._problems,
        )
        noted = self._attempt(lambda: read_damages(self._disk, self._paths.damage)) or ()
        if self._base is not None:
            noted = clip_to_base(noted, self._base)
        report.noted_damages = [known.damage for known in noted]
        if self._base is not None and not report.resetting:
            report.begin_index = self._base.index + 1
        return report

    def batches(self, report: DirectoryReport) -> Iterator[Batch]:
        """Iterate over all good batches, across damages. Afterwards `report` has the end, the damages and the
        verdict, which the first fault decides."""
        if self._base is None or report.resetting:
            return
        tail = tail_of(self._base)
        anchors = [self._checkpoint.tail] if self._checkpoint is not None else []
        known_end = self._checkpoint.tail.index if self._checkpoint is not None else -1
        while True:
            scanner = LogScanner(self._data, tail)
            yield from scanner.batches()
            tail = scanner.tail
            report.end_index, report.end_term, report.end_pos = tail.index, tail.term, tail.pos
            judgement = judge_end(self._data, self._index, tail, scanner.fault, known_end)
            if not report.damages:
                report.verdict, report.verdict_reason = judgement
            resumption = None
            if judgement.verdict is LogEndState.DAMAGED:
                resumption = resume(self._data, self._index, tail, anchors)
            if resumption is None:
                return
            pos = scanner.fault.pos if scanner.fault is not None else tail.pos
            known = make_damage(self._data, tail, resumption.after, pos, judgement.reason)
            report.damages.append(known.damage)
            tail = known.after

    def _count(self, report: DirectoryReport, batch: Batch) -> None:
        report.batch_count += 1
        report.entry_count += batch.count
        pos = batch.pos
        for index in range(batch.first_index, batch.last_index + 1):
            report.unindexed_count += not self._is_indexed(index, pos)
            pos += unpack_header(batch.data, pos - batch.pos).size

    def _is_indexed(self, index: int, pos: int) -> bool:
        stored = self._index.read(index * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE)
        if len(stored) < INDEX_RECORD_SIZE:
            return False
        record = unpack_record(stored)
        return record.is_plausible(index) and record.pos == pos

    def entries(self, first_index: int, last_index: int | None) -> Iterator[EntryReport]:
        pos, chain = self._first_position(first_index)
        while pos < self._data.end:
            begin = self._data.read(pos, ENTRY_HEADER_SIZE)
            header = unpack_header(begin) if len(begin) == ENTRY_HEADER_SIZE else None
            if header is None or header.size < ENTRY_HEADER_SIZE or header.magic == MAGIC_BLANK:
                # A blank, or the end of the log: the next entry, if any, is at the next file border.
                pos = self._data.start_of(pos) + self._data.file_size
                continue
            if last_index is not None and header.index > last_index:
                return
            report = self._entry_report(pos, chain)
            if header.index >= first_index:
                yield report
            pos += header.size
            chain = header.chain_crc

    def _first_position(self, first_index: int) -> tuple[int, int | None]:
        """Return the position to start from, and the chain_crc of the preceding entry if it is known."""
        stored = self._index.read(first_index * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE)
        if first_index > 0 and len(stored) == INDEX_RECORD_SIZE:
            record = unpack_record(stored)
            if record.is_plausible(first_index):
                return record.pos, self._chain_at(first_index - 1)
        if self._base is None:
            return (self._data.starts or [0])[0], None
        return self._base.pos, self._base.chain_crc

    def _chain_at(self, index: int) -> int | None:
        stored = self._index.read(index * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE)
        if len(stored) < INDEX_RECORD_SIZE or not unpack_record(stored).is_plausible(index):
            return None
        begin = self._data.read(unpack_record(stored).pos, ENTRY_HEADER_SIZE)
        return unpack_header(begin).chain_crc if len(begin) == ENTRY_HEADER_SIZE else None

    def _entry_report(self, pos: int, previous_chain: int | None) -> EntryReport:
        header = unpack_header(self._data.read(pos, ENTRY_HEADER_SIZE))
        body = self._data.read(pos + ENTRY_HEADER_SIZE, max(header.body_size, 0))
        return EntryReport(
            header.index,
            header.term,
            header.pos,
            header.size,
            header.channel,
            header.magic,
            header.chain_crc,
            body_crc_ok=len(body) == header.body_size and crc32(body) == header.body_crc,
            chain_crc_ok=previous_chain is None or chain_of(header, previous_chain) == header.chain_crc,
            indexed=self._is_indexed(header.index, pos),
        )


def _files(files: FileSequence) -> list[FileReport]:
    return [FileReport(files.path_of(start), start, files.length(start)) for start in files.starts]
