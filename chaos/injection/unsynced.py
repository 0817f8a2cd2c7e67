"""Records the changes to a disk that are not durable yet, so that a simulated power loss can undo them.

A journal next to the node's directory holds the undo data of each change that no completed sync covers. It is
written before the change and survives SIGKILL. A file whose name was removed is kept under another name until
its directory is synced. `lose_power`, which is called after the process has died, undoes the latest changes.
The oldest of these may be undone only in part.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

JOURNAL, KEPT = "unsynced.jsonl", "kept"
_COMPACT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class UnsyncedChange:
    """One change that may be lost. Paths are relative to the node's directory.

    data: `length` bytes at offset `at` of file `inode`, whose size was `size`, were `old` followed by
    zeros.
    size: the same, for a file that was truncated or extended. create, mkdir: `path` was created.
    rename: `path` was `source` before. unlink: `path` was removed. `kept`: name of the replaced or removed
    file.
    """

    number: int
    kind: str
    path: str = ""
    source: str = ""
    kept: str = ""
    inode: int = 0
    at: int = 0
    length: int = 0
    size: int = 0
    old: str = ""

    @property
    def directory(self) -> str:
        return str(Path(self.path).parent)


@dataclass(frozen=True, slots=True)
class Loss:
    """Result of a power loss: `undone` of `unsynced` changes were undone, with `lost_bytes` of data.
    `ranges`: inode, offset and length of bytes whose latest write was lost."""

    unsynced: int
    undone: int
    lost_bytes: int
    ranges: tuple[tuple[int, int, int], ...] = ()


class UnsyncedRecord:
    """The record of one node, whose files are below `root`; `folder` belongs to the harness. Thread-safe."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._journal = folder / JOURNAL
        self._kept = folder / KEPT
        self._kept.mkdir(exist_ok=True)
        self._lock = Lock()
        # Changes that were not durable when the process died are still not durable: they are in the page
        # cache.
        self._pending = _load(self._journal)
        self._number = max((change.number for change in self._pending), default=0)
        self._file = self._journal.open("ab", buffering=0)
        self._compact()

    @property
    def number(self) -> int:
        """Number of the latest change. A sync covers the changes made before it started."""
        return self._number

    def data(self, handle: int, at: int, length: int, *, kind: str = "data") -> None:
        """Record that bytes of an open file are about to be written, or added or cut off (`size`)."""
        status = os.fstat(handle)
        old = os.pread(handle, min(length, max(0, status.st_size - at)), at).rstrip(b"\0")
        text = b85encode(zlib.compress(old, 1)).decode() if old else ""
        self._add(kind=kind, inode=status.st_ino, at=at, length=length, size=status.st_size, old=text)

    def created(self, path: Path, *, is_directory: bool = False) -> None:
        self._add(kind="mkdir" if is_directory else "create", path=self._name(path))

    def renaming(self, old: Path, new: Path) -> None:
        self._add(kind="rename", path=self._name(new), source=self._name(old), kept=self._keep(new))

    def unlinking(self, path: Path) -> None:
        self._add(kind="unlink", path=self._name(path), kept=self._keep(path))

    def synced(self, handle: int, number: int) -> None:
        """Record that fdatasync returned; `number` was the latest change when it started."""
        inode = os.fstat(handle).st_ino
        self._settle({"synced": inode, "number": number})

    def directory_synced(self, path: Path, number: int) -> None:
        gone = self._settle({"named": self._name(path), "number": number})
        for change in gone:
            if change.kept:
                kept = self._kept / change.kept
                inode = kept.stat().st_ino
                kept.unlink()
                # The file's content is unreachable now, and its inode number may be reused.
                if not any(status.st_ino == inode for status in map(os.lstat, _files(self._root))):
                    self._settle({"synced": inode, "number": self._number})

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    def _keep(self, path: Path) -> str:
        if not path.exists():
            return ""
        name = f"{self._number + 1}-{path.name}"
        (self._kept / name).unlink(missing_ok=True)
        os.link(path, self._kept / name)
        return name

    def _add(self, **fields: Any) -> None:
        with self._lock:
            self._number += 1
            change = UnsyncedChange(self._number, **fields)
            self._pending.append(change)
            self._write(_to_json(change))

    def _settle(self, line: dict[str, Any]) -> list[UnsyncedChange]:
        with self._lock:
            gone = [change for change in self._pending if _is_settled(change, line)]
            if gone:
                numbers = {change.number for change in gone}
                self._pending = [change for change in self._pending if change.number not in numbers]
                self._write(line)
                if self._file.tell() > _COMPACT_BYTES:
                    self._compact()
            return gone

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def _compact(self) -> None:
        partial = self._journal.with_suffix(".new")
        partial.write_text("".join(json.dumps(_to_json(change)) + "\n" for change in self._pending))
        partial.replace(self._journal)
        self._file.close()
        self._file = self._journal.open("ab", buffering=0)
        self._file.seek(0, os.SEEK_END)


def lose_power(root: Path, folder: Path, rng: Random) -> Loss:
    """In half of the cases, undo all changes. Otherwise undo a random change and all later ones, at least the
    latest.

    The process must be dead. The remaining changes become durable.
    """
    pending = _load(folder / JOURNAL)
    keep = 0 if rng.random() < 0.5 or not pending else rng.randrange(len(pending))
    lost = pending[keep:]
    if keep and lost and lost[0].kind == "data":
        lost[0] = _torn(lost[0], rng)
    for change in reversed(lost):
        _undo(change, root, folder / KEPT)
    forget(folder)
    ranges = tuple((c.inode, c.at, c.length) for c in lost if c.inode)
    return Loss(len(pending), len(lost), sum(c.length for c in lost if c.kind == "data"), ranges)


def forget(folder: Path) -> None:
    """Delete the record, because the files no longer exist or their content is durable."""
    (folder / JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(folder / KEPT, ignore_errors=True)


def _torn(change: UnsyncedChange, rng: Random) -> UnsyncedChange:
    """Return the part of a write that is lost when only a prefix reached the disk."""
    kept = rng.randrange(max(1, change.length))
    old = _old(change)[kept:]
    return replace(
        change,
        at=change.at + kept,
        length=change.length - kept,
        size=max(change.size, change.at + kept),
        old=b85encode(zlib.compress(old, 1)).decode() if old else "",
    )


def _old(change: UnsyncedChange) -> bytes:
    return zlib.decompress(b85decode(change.old)) if change.old else b""


def _undo(change: UnsyncedChange, root: Path, kept: Path) -> None:
    path = root / change.path
    match change.kind:
        case "data" | "size":
            _undo_data(change, root, kept)
        case "create":
            path.unlink(missing_ok=True)
        case "mkdir":
            path.rmdir()
        case "rename":
            path.rename(root / change.source)
        case _:
            assert change.kind == "unlink", change
    if change.kept:
        os.link(kept / change.kept, path)


def _undo_data(change: UnsyncedChange, root: Path, kept: Path) -> None:
    path = _path_of(change.inode, [*_files(root), *_files(kept)])
    if path is None:
        return  # the file no longer exists
    with path.open("r+b") as file:
        file.truncate(change.size)
        length = min(change.length, max(0, change.size - change.at))
        file.seek(change.at)
        file.write(_old(change)[:length].ljust(length, b"\0"))


def _path_of(inode: int, paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.stat().st_ino == inode), None)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _load(journal: Path) -> list[UnsyncedChange]:
    """Return the changes that no sync covers, oldest first. A torn last line is ignored: its change never
    started."""
    pending: list[UnsyncedChange] = []
    if not journal.exists():
        return pending
    for text in journal.read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        if "kind" in line:
            pending.append(UnsyncedChange(**line))
        else:
            pending = [change for change in pending if not _is_settled(change, line)]
    return pending


def _is_settled(change: UnsyncedChange, line: dict[str, Any]) -> bool:
    if change.number > line["number"]:
        return False
    if change.inode:
        return bool(line.get("synced") == change.inode)
    return bool(line.get("named") == change.directory)


def _to_json(change: UnsyncedChange) -> dict[str, Any]:
    """Omit default values, because the journal has many lines."""
    return {key: value for key, value in asdict(change).items() if value != _DEFAULTS.get(key)}


_DEFAULTS: dict[str, Any] = {
    k: v for k, v in asdict(UnsyncedChange(0, "")).items() if k not in ("number", "kind")
}
