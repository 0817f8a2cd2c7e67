"""All IndexFiles of a node, which map keys to candidate messages.

One thread changes them; any thread may search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from broker_adapter.store.consume_queue import CheckpointMismatch
from broker_adapter.store.index_file import IndexFile, IndexState, Keys
from broker_adapter.store.open_files import Changes, OpenFiles
from broker_adapter.wire.index_layout import IndexShape, index_key, index_keys, key_hash
from broker_adapter.wire.key_hashes import Int64s, key_hashes, row_hashes
from dledger.infra.files.disk import Disk, list_directory

_log = structlog.get_logger(part="reput")

DIRECTORY = "index"
_NAME = re.compile(r"[0-9]{17}\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_STAMP = 253_402_300_799_999  # the end of the year 9999


# A message with keys: topic, UNIQ_KEY, KEYS, physical offset, store timestamp (ms).
KeyedMessage = tuple[str, str | None, str | None, int, int]


class KeyedRun(NamedTuple):
    """Consecutive messages of a topic with the same number of keys, whose ASCII codes are the rows of `keys`.

    `offsets`, `stamps`: physical offset and store timestamp (ms) of each message.
    """

    topic: str
    keys: tuple[npt.NDArray[np.uint8], ...]
    offsets: Int64s
    stamps: Int64s

    def all_keys(self) -> Keys:
        """Return the keys in log order: all keys of the first message, then those of the next one."""
        prefix = index_key(self.topic, "")
        hashes = np.stack([row_hashes(prefix, rows) for rows in self.keys], axis=1)
        number = len(self.keys)
        return Keys(hashes.ravel(), self.offsets.repeat(number), self.stamps.repeat(number))


class IndexSnapshot(NamedTuple):
    """The files at one log position.

    `doomed`: files to remove once a checkpoint without them is durable.
    """

    states: list[IndexState]
    changes: Changes
    doomed: list[Path]


class IndexFiles:
    """Index files. The name of a file is the time (UTC, yyyyMMddHHmmssSSS) of its first message.

    A name may be later than that time, so that names are unique and increase.
    """

    def __init__(
        self, root: Path, disk: Disk, *, shape: IndexShape | None = None, max_open_files: int = 16
    ) -> None:
        """Create the table for `root`/index without files."""
        self.shape = shape or IndexShape()
        self._directory = root / DIRECTORY
        self._disk = disk
        self._open_files = OpenFiles(disk, root, limit=max_open_files)
        self._all: tuple[IndexFile, ...] = ()  # replaced as a whole, because other threads read it
        self._doomed: list[Path] = []

    # -- from any thread ---------------------------------------------------------------------------------

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield physical offsets of messages that may have this key and a store timestamp in the range (ms).

        The newest comes first; consecutive duplicates and purged files are omitted. Other keys may have the
        same hash, and times are rounded to seconds, so callers must check the messages.
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
        """Number of items in all files."""
        return sum(file.header.next_item - 1 for file in self._all)

    # -- for the writer's thread -------------------------------------------------------------------------

    def add(self, messages: Iterable[KeyedMessage | KeyedRun]) -> None:
        """Add the keys of messages in log order."""
        remaining = _keys_of(messages)
        while len(remaining.hashes):
            newest = self._all[-1] if self._all else None
            if newest is None or not newest.room:
                newest = self._roll(int(remaining.stamps[0]))
            keys_of_file, remaining = remaining.split(newest.room)
            newest.add(keys_of_file)

    def purge_below(self, physical_offset: int) -> None:
        """Drop the files that contain only older messages, except the newest file."""
        kept = tuple(
            file for file in self._all if file is self._all[-1] or file.header.end_offset >= physical_offset
        )
        self._doomed += [file.path for file in self._all if file not in kept]
        self._all = kept

    def snapshot(self, *, settle: bool = False) -> IndexSnapshot:
        """Take a snapshot. `settle`: first write the newest file completely, for external readers."""
        if self._all and self._all[-1].state().head_crc is None:
            newest = self._all[-1]
            (newest.write_slots if settle else newest.write_header)()
        doomed, self._doomed = self._doomed, []
        return IndexSnapshot([file.state() for file in self._all], self._open_files.take_changes(), doomed)

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files. May be called on any thread."""
        for path in paths:
            self._open_files.remove(path)

    def restore(self, states: Iterable[IndexState]) -> None:
        """Restore a checkpoint. Raises CheckpointMismatch or OSError if the files do not match."""
        files: list[IndexFile] = []
        for state in states:
            if files and files[-1].state().head_crc is None:
                raise CheckpointMismatch(
                    f"{files[-1].path} is not sealed, although it is not the newest file"
                )
            file = IndexFile(self._directory / state.name, self._open_files, self.shape)
            file.restore(state)
            files.append(file)
        self._all = tuple(files)
        kept = {file.path for file in files}
        self.remove(path for path in self._own_files() if path not in kept)

    def forget(self) -> None:
        """Forget all files without changing them."""
        self._open_files.close()
        self._open_files.take_changes()
        self._all = ()
        self._doomed.clear()

    def wipe(self) -> None:
        """Forget and remove all IndexFiles. Other files are not removed."""
        self.forget()
        self.remove(self._own_files())

    def close(self) -> None:
        self._open_files.close()

    # -- internals ---------------------------------------------------------------------------------------

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
                _log.warning("ignoring a file that is not an IndexFile", path=str(self._directory / name))
        return found


def _name(stamp: int) -> str:
    time = _EPOCH + timedelta(milliseconds=stamp)
    return f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"


def _keys_of(messages: Iterable[KeyedMessage | KeyedRun]) -> Keys:
    """Return the keys of messages, in the same order."""
    found: list[Keys] = []
    texts: list[str] = []
    offsets: list[int] = []
    stamps: list[int] = []

    def end_texts() -> None:
        arrays = (np.array(each, dtype=np.int64) for each in (offsets, stamps))
        found.append(Keys(key_hashes(texts), *arrays))
        for each in (texts, offsets, stamps):
            each.clear()

    for message in messages:
        if isinstance(message, KeyedRun):
            end_texts()
            found.append(message.all_keys())
            continue
        topic, unique_key, keys, physical_offset, store_timestamp = message
        mine = index_keys(topic, unique_key, keys)
        texts += mine
        offsets += [physical_offset] * len(mine)
        stamps += [store_timestamp] * len(mine)
    end_texts()
    return Keys(*map(np.concatenate, zip(*found, strict=True)))
