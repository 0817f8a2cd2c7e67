"""All IndexFiles of a node: which messages may have a key. One thread changes them, any may ask."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import structlog

from broker_adapter.format.index_layout import IndexShape, index_key, index_keys, key_hash
from broker_adapter.format.key_hashes import key_hashes
from broker_adapter.store.consume_queue import Disagreement
from broker_adapter.store.index_file import IndexFile, IndexState, Keys
from broker_adapter.store.open_files import Changes, OpenFiles
from dledger.platform import Disk, list_directory

_log = structlog.get_logger(part="reput")

DIRECTORY = "index"
_NAME = re.compile(r"[0-9]{17}\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_STAMP = 253_402_300_799_999  # the end of the year 9999


#: A message that has keys: topic, UNIQ_KEY, KEYS, physical offset, store timestamp (ms).
KeyedMessage = tuple[str, str | None, str | None, int, int]


class IndexSnapshot(NamedTuple):
    """The files at one point of the log; `doomed` may go once a checkpoint without them is durable."""

    states: list[IndexState]
    changes: Changes
    doomed: list[Path]


class IndexFiles:
    """The files are called by the time (UTC, yyyyMMddHHmmssSSS) of the first message in them, or a little
    later: each has a greater name than the one before."""

    def __init__(
        self, root: Path, disk: Disk, *, shape: IndexShape | None = None, max_open_files: int = 16
    ) -> None:
        """In `root`/index; nothing is there until `restore` or a first key."""
        self.shape = shape or IndexShape()
        self._directory = root / DIRECTORY
        self._disk = disk
        self._open_files = OpenFiles(disk, root, limit=max_open_files)
        self._all: tuple[IndexFile, ...] = ()  # replaced whole: others read it
        self._doomed: list[Path] = []

    # -- from any thread --------------------------------------------------------------------------------

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of messages that may have this key and a store timestamp within both (ms).

        The newest first, none twice in a row. Other keys may have the same hash, and times are taken to the
        second: whoever reads the message looks again. What was purged meanwhile is left out.
        """
        hash_ = key_hash(index_key(topic, key))
        before = -1
        for file in reversed(self._all):
            try:
                for offset in file.find(hash_, begin_ms, end_ms):
                    if offset != before:
                        yield offset
                    before = offset
            except FileNotFoundError:
                return

    @property
    def items(self) -> int:
        """How many items all files have."""
        return sum(file.header.next_item - 1 for file in self._all)

    # -- on the thread that changes them ----------------------------------------------------------------

    def add(self, messages: Iterable[KeyedMessage]) -> None:
        """Add the keys of messages, in the order of the log."""
        texts: list[str] = []
        offsets: list[int] = []
        stamps: list[int] = []
        for topic, unique_key, keys, physical_offset, store_timestamp in messages:
            mine = index_keys(topic, unique_key, keys)
            texts += mine
            offsets += [physical_offset] * len(mine)
            stamps += [store_timestamp] * len(mine)
        if not texts:
            return
        left = Keys(key_hashes(texts), np.array(offsets, dtype=np.int64), np.array(stamps, dtype=np.int64))
        while len(left.hashes):
            newest = self._all[-1] if self._all else None
            if newest is None or not newest.room:
                newest = self._roll(int(left.stamps[0]))
            now, left = left.split(newest.room)
            newest.add(now)

    def purge_below(self, physical_offset: int) -> None:
        """Let go of files that have older messages only; the newest file stays."""
        kept = tuple(
            file for file in self._all if file is self._all[-1] or file.header.end_offset >= physical_offset
        )
        self._doomed += [file.path for file in self._all if file not in kept]
        self._all = kept

    def snapshot(self, *, settle: bool = False) -> IndexSnapshot:
        """`settle`: the newest file is written whole, for readers of the files."""
        if self._all and self._all[-1].state().head_crc is None:
            newest = self._all[-1]
            (newest.write_slots if settle else newest.write_header)()
        doomed, self._doomed = self._doomed, []
        return IndexSnapshot([file.state() for file in self._all], self._open_files.take_changes(), doomed)

    def remove(self, paths: Iterable[Path]) -> None:
        """From any thread."""
        for path in paths:
            self._open_files.remove(path)

    def restore(self, states: Iterable[IndexState]) -> None:
        """Become what a checkpoint says. Disagreement or OSError if the files are not like that."""
        found: list[IndexFile] = []
        for state in states:
            if found and found[-1].state().head_crc is None:
                raise Disagreement(f"{found[-1].path} is not the newest file, but not sealed either")
            file = IndexFile(self._directory / state.name, self._open_files, self.shape)
            file.restore(state)
            found.append(file)
        self._all = tuple(found)
        kept = {file.path for file in found}
        self.remove(path for path in self._own_files() if path not in kept)

    def forget(self) -> None:
        """No file is known, whatever is there."""
        self._open_files.close()
        self._open_files.take_changes()
        self._all = ()
        self._doomed.clear()

    def wipe(self) -> None:
        """Forget everything and remove all files. Others than an index has are left where they are."""
        self.forget()
        self.remove(self._own_files())

    def close(self) -> None:
        self._open_files.close()

    # -- inside -----------------------------------------------------------------------------------------

    def _roll(self, stamp: int) -> IndexFile:
        if self._all:
            self._all[-1].seal()
        stamp = min(max(stamp, 0), _LAST_STAMP)
        name = _name(stamp)
        if self._all and name <= self._all[-1].path.name:
            name = f"{int(self._all[-1].path.name) + 1:017d}"
        file = IndexFile(self._directory / name, self._open_files, self.shape)
        file.create()
        self._all = (*self._all, file)
        return file

    def _own_files(self) -> list[Path]:
        found = []
        for name in list_directory(self._disk, self._directory):
            if _NAME.match(name):
                found.append(self._directory / name)
            else:
                _log.warning("a file that is no IndexFile is left alone", path=str(self._directory / name))
        return found


def _name(stamp: int) -> str:
    time = _EPOCH + timedelta(milliseconds=stamp)
    return f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"
