"""Recorder of writes and syncs in the process of a node.

`install` replaces the functions of `os` that change files, before any module of the product is imported. The
recorder shares no code with the product. It examines the arguments of the calls, the files to which
descriptors refer, and the bytes that are written. A write that bypasses these functions is never considered
durable.

The journal (`chaos.syncs.journal`) is a mapped file: each line is in the page cache before its call
continues, so SIGKILL loses none. Times are CLOCK_MONOTONIC in ns.
"""

from __future__ import annotations

import builtins
import io
import mmap
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Self
from urllib.parse import quote

from chaos.syncs.journal import next_journal
from chaos.trace.files import MappedFile

#: Environment variables of a node: the watched directory, and the directory for journals.
ROOT, JOURNALS = "DLEDGER_SYNCS_ROOT", "DLEDGER_SYNCS_JOURNALS"
DATA, TERM_FILE = "data", "currterm"
#: Directory with the files of a classic log, below the watched directory.
CLASSIC_LOG = "commitlog"

Buffer = bytes | bytearray | memoryview
_mono = time.monotonic_ns

# docs/formats.md, "Entry": magic, size, index, term, pos.
_HEADER = struct.Struct(">iiqqq")
_ENTRY_MAGICS = (1, 2)
_MAGIC_BYTES = re.compile(rb"(?=\0\0\0[\1\2])")
_LEAST_ENTRY = 48


class _WatchedFile:
    """A watched file. `base`: position of its first byte in the log, or -1 for other files. `is_classic`: the
    file belongs to a classic log, of whose content only the end is recorded."""

    __slots__ = ("base", "end", "inode", "is_classic", "partial")

    def __init__(self, inode: int, name: str) -> None:
        self.inode = inode
        self.base = _base_of(name)
        self.is_classic = name.startswith(f"{CLASSIC_LOG}/")
        self.end = 0  # end of the last write
        self.partial = b""  # its last bytes, too few for the header of an entry


class Recorder:
    """Records the files below `root`: of a log (`data/`, `commitlog/`), and of term and vote. Thread-safe."""

    def __init__(self, root: Path, journal: Path, boot_id: str) -> None:
        """Create the journal and list the files in `root`. Raises FileExistsError if the journal exists."""
        self._root = root.resolve()
        self._lock = Lock()
        self._journal = MappedFile(journal)
        self._lines = 0
        self._in_flight: set[int] = set()
        self._files: dict[tuple[int, int], _WatchedFile] = {}
        self._line(b"life %d %d %s" % (_mono(), os.getpid(), boot_id.encode() or b"-"))
        for name, status in sorted(_listed(self._root)):
            self._line(b"has %d %d %s" % (status.st_ino, status.st_size, _quoted(name)))
            self._files[status.st_dev, status.st_ino] = _WatchedFile(status.st_ino, name)
        self._line(b"listed %d" % _mono())

    def _line(self, text: bytes) -> int:
        """Write a line and return its number. Requires the lock, except for the first lines."""
        self._journal.write(text + b"\n")
        self._lines += 1
        return self._lines

    def _name(self, path: Any) -> str | None:
        """Return the name relative to the root if the file is watched."""
        if isinstance(path, int):
            return None
        requested = Path(os.fsdecode(path))
        full = requested.parent.resolve() / requested.name
        if not full.is_relative_to(self._root):
            return None
        name = str(full.relative_to(self._root))
        return name if is_watched(name) else None

    def _file(self, handle: int) -> _WatchedFile | None:
        status = os.fstat(handle)
        return self._files.get((status.st_dev, status.st_ino))

    # -- replacements for functions of `os`

    def open(self, call: Callable[..., int], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        name = self._name(path) if writes else None
        if name is None:
            return call(path, flags, *args, **kwargs)
        existed = os.path.lexists(path)
        handle = call(path, flags, *args, **kwargs)
        status = os.fstat(handle)
        with self._lock:
            key = (status.st_dev, status.st_ino)
            if not existed:
                self._files[key] = _WatchedFile(status.st_ino, name)
                self._line(b"made %d %d %s" % (_mono(), status.st_ino, _quoted(name)))
            elif flags & os.O_TRUNC and key in self._files:
                self._line(b"cut %d %d 0" % (_mono(), status.st_ino))
        return handle

    def write(self, call: Callable[[], int], handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Record a write. `offset` -1: at the position of the descriptor."""
        file = self._file(handle)
        if file is None:
            return call()
        if offset < 0:
            offset = os.lseek(handle, 0, os.SEEK_CUR)
        data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        if file.is_classic and not any(data):  # how a classic log removes its end
            with self._lock:
                self._line(b"cut %d %d %d" % (_mono(), file.inode, offset))
            return call()
        with self._lock:
            before = (file.end, file.partial)
            what = self._what(file, data, offset)
            number = self._line(b"write %d %d %d %d %s" % (_mono(), file.inode, offset, len(data), what))
            self._in_flight.add(number)
        done = -1
        try:
            done = call()
            return done
        finally:
            with self._lock:
                self._in_flight.discard(number)
                if done != len(data):
                    self._line(b"wrote %d %d" % (number, max(0, done)))
                    file.end, file.partial = before
                    _entries(file, data[: max(0, done)], offset)  # offset of the remaining bytes

    @staticmethod
    def _what(file: _WatchedFile, data: bytes, offset: int) -> bytes:
        if file.is_classic:
            return b"-"
        return _entries(file, data, offset) if file.base >= 0 else b"=" + data.hex().encode()

    def sync(self, call: Callable[[Any], None], handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        file = self._file(number)
        folder = None if file is not None else self._folder(number)
        if file is None and folder is None:
            return call(handle)
        with self._lock:
            began, before = _mono(), self._lines
            flying = b",".join(b"%d" % line for line in sorted(self._in_flight)) or b"-"
        try:
            call(handle)
        except OSError:
            with self._lock:
                if file is not None:
                    self._line(b"unsynced %d %d" % (_mono(), file.inode))
            raise
        with self._lock:
            if file is not None:
                self._line(b"sync %d %d %d %d %s" % (began, _mono(), file.inode, before, flying))
            else:
                self._line(b"folder %d %d %s %d" % (began, _mono(), _quoted(folder or ""), before))
        return None

    def _folder(self, handle: int) -> str | None:
        """Return the name relative to the root, or None if it is not a directory below the root."""
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            return None
        path = Path(f"/proc/self/fd/{handle}").readlink()
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else None

    def truncate(self, call: Callable[[], None], target: Any, size: int) -> None:
        if isinstance(target, int):
            file = self._file(target)
        else:
            name = self._name(target)
            file = self._files.get(_identity(target)) if name is not None else None
        if file is not None:
            with self._lock:
                self._line(b"cut %d %d %d" % (_mono(), file.inode, size))
                file.partial = b""
        call()

    def rename(self, call: Callable[..., None], old: Any, new: Any, **kwargs: Any) -> None:
        before, after = self._name(old), self._name(new)
        if before is None and after is None:
            return call(old, new, **kwargs)
        replaced = _identity(new)
        call(old, new, **kwargs)
        with self._lock:
            status = os.lstat(new)
            if replaced != (status.st_dev, status.st_ino):
                self._files.pop(replaced, None)
            if after is not None and before is None:  # it was written while it was not watched
                self._line(b"odd %d %d" % (_mono(), status.st_ino))
            text = (_mono(), status.st_ino, _quoted(before or "-"), _quoted(after or "-"))
            self._line(b"name %d %d %s %s" % text)
            file = self._files.get((status.st_dev, status.st_ino))
            if file is not None and after is not None:
                file.base = _base_of(after)
        return None

    def unlink(self, call: Callable[..., None], path: Any, **kwargs: Any) -> None:
        name = self._name(path)
        if name is not None:
            with self._lock:
                self._line(b"gone %d %s" % (_mono(), _quoted(name)))
                # Its inode number may be reused.
                self._files.pop(_identity(path), None)
        call(path, **kwargs)

    def odd(self, handle: int) -> None:
        """Record that writes to a file may not be recorded from now on."""
        file = self._file(handle)
        if file is not None:
            with self._lock:
                self._line(b"odd %d %d" % (_mono(), file.inode))


def _identity(path: Any) -> tuple[int, int]:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return (-1, -1)
    return (status.st_dev, status.st_ino)


def is_watched(name: str) -> bool:
    """Return True for files of a log, the file of term and vote, and files that will replace one, by name."""
    folder, _, last = name.rpartition("/")
    return folder in (DATA, CLASSIC_LOG) or (folder == "" and last.startswith(TERM_FILE))


def _listed(root: Path) -> list[tuple[str, os.stat_result]]:
    files = []
    for prefix in ("", f"{DATA}/", f"{CLASSIC_LOG}/"):
        folder = root / prefix
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and is_watched(prefix + entry.name):
                files.append((prefix + entry.name, entry.stat(follow_symlinks=False)))
    return files


def _base_of(name: str) -> int:
    """Return the first position of a data file, which is its name (docs/formats.md)."""
    folder, _, last = name.rpartition("/")
    digits = last.partition(".")[0]
    return int(digits) if folder == DATA and digits.isdecimal() else -1


def _entries(file: _WatchedFile, data: bytes, offset: int) -> bytes:
    """Return the entries that start in a write, as `index:term:offset:size,size...`, one such run per term,
    separated by `;`; `-` without entries."""
    end, at = offset + len(data), offset
    if file.partial and file.end == offset:
        data = file.partial + data
        at = offset = offset - len(file.partial)
    runs: list[str] = []
    sizes: list[int] = []
    first = term = begin = reached = -1
    while at + _HEADER.size <= end:
        if not _is_header(data, at - offset, file.base + at):
            at = _next_header(data, offset, at, file.base)
            continue
        _, size, index, its_term, _ = _HEADER.unpack_from(data, at - offset)
        following = _following(data, offset, at, size, file.base)
        if sizes and (index != first + len(sizes) or its_term != term or at != reached):
            runs.append(f"{first}:{term}:{begin}:{','.join(map(str, sizes))}")
            sizes = []
        if not sizes:
            first, term, begin = index, its_term, at
        sizes.append(following - at)
        at = reached = following
    if sizes:
        runs.append(f"{first}:{term}:{begin}:{','.join(map(str, sizes))}")
    # The size of the last entry may be damaged, so search for the next header from here.
    file.end, file.partial = end, data[1 - _HEADER.size :]
    return ";".join(runs).encode() or b"-"


def _following(data: bytes, offset: int, at: int, size: int, base: int) -> int:
    """Return the end of an entry.

    A copy of a file includes damaged entries. If no entry follows at the stated size, but one starts
    before, the size itself is damaged.
    """
    stated = at + size
    if stated == offset + len(data) or _is_header(data, stated - offset, base + stated):
        return stated
    following = _next_header(data, offset, at + 1, base)
    return following if following < stated and following + _HEADER.size <= offset + len(data) else stated


def _next_header(data: bytes, offset: int, at: int, base: int) -> int:
    """Return the next offset at or after `at` with a valid header. If there is none, return the first offset
    at or after `at` from which the remaining bytes are too few for a header."""
    for match in _MAGIC_BYTES.finditer(data, at - offset):
        if _is_header(data, match.start(), base + offset + match.start()):
            return offset + match.start()
    return max(at, offset + len(data) - _HEADER.size + 1)


def _is_header(data: bytes, at: int, pos: int) -> bool:
    if len(data) < at + _HEADER.size:
        return False
    magic, size, _, _, its_pos = _HEADER.unpack_from(data, at)
    return magic in _ENTRY_MAGICS and its_pos == pos and size >= _LEAST_ENTRY


def _quoted(name: str) -> bytes:
    return quote(name).encode()


def install(recorder: Recorder) -> None:
    """Replace the functions of `os` that write, permanently."""
    system: Any = os  # untyped, because its functions are replaced
    for name in ("fsync", "fdatasync"):
        setattr(system, name, _syncing(recorder, getattr(os, name)))
    for name in ("rename", "replace"):
        setattr(system, name, _renaming(recorder, getattr(os, name)))
    for name in ("unlink", "remove"):
        setattr(system, name, _unlinking(recorder, getattr(os, name)))
    for name in ("truncate", "ftruncate"):
        setattr(system, name, _truncating(recorder, getattr(os, name)))
    real_open, real_pwritev, real_pwrite = os.open, os.pwritev, os.pwrite
    real_write, real_writev, real_io_open = os.write, os.writev, io.open

    def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        return recorder.open(real_open, path, flags, *args, **kwargs)

    def pwritev(handle: int, buffers: Sequence[Buffer], offset: int, *args: Any) -> int:
        return recorder.write(lambda: real_pwritev(handle, buffers, offset, *args), handle, buffers, offset)

    def pwrite(handle: int, data: Buffer, offset: int) -> int:
        return recorder.write(lambda: real_pwrite(handle, data, offset), handle, [data], offset)

    def write(handle: int, data: Buffer) -> int:
        return recorder.write(lambda: real_write(handle, data), handle, [data], -1)

    def writev(handle: int, buffers: Sequence[Buffer]) -> int:
        return recorder.write(lambda: real_writev(handle, buffers), handle, buffers, -1)

    def io_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        opened = real_io_open(file, mode, *args, **kwargs)
        if set(mode) & set("wa+x"):
            recorder.odd(opened.fileno())
        return opened

    class UnrecordedMapping(mmap.mmap):
        """A mapping of a file, which records that writes to it are not observed."""

        def __new__(cls, fileno: int, *args: Any, **kwargs: Any) -> Self:
            if fileno >= 0 and kwargs.get("access") not in (mmap.ACCESS_READ, mmap.ACCESS_COPY):
                recorder.odd(fileno)
            return super().__new__(cls, fileno, *args, **kwargs)

    for name, function in (("open", open_), ("pwritev", pwritev), ("pwrite", pwrite)):
        setattr(system, name, function)
    system.write, system.writev = write, writev
    for name in ("sendfile", "copy_file_range", "splice"):
        setattr(system, name, _copying(recorder, getattr(os, name)))
    for module, name, replacement in (
        (io, "open", io_open),
        (builtins, "open", io_open),
        (mmap, "mmap", UnrecordedMapping),
    ):
        setattr(module, name, replacement)


def _syncing(recorder: Recorder, call: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda handle: recorder.sync(call, handle)


def _renaming(recorder: Recorder, call: Callable[..., None]) -> Callable[..., None]:
    def rename(old: Any, new: Any, **kwargs: Any) -> None:
        recorder.rename(call, old, new, **kwargs)

    return rename


def _unlinking(recorder: Recorder, call: Callable[..., None]) -> Callable[..., None]:
    def unlink(path: Any, **kwargs: Any) -> None:
        recorder.unlink(call, path, **kwargs)

    return unlink


def _truncating(recorder: Recorder, call: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    return lambda target, size: recorder.truncate(lambda: call(target, size), target, size)


def _copying(recorder: Recorder, call: Callable[..., Any]) -> Callable[..., Any]:
    def copy(*args: Any, **kwargs: Any) -> Any:
        for handle in (*args[:2], *kwargs.values()):
            if isinstance(handle, int) and handle >= 0:
                try:
                    recorder.odd(handle)
                except OSError:
                    continue  # not a file descriptor
        return call(*args, **kwargs)

    return copy


def install_from_environment() -> None:
    """Start recording if the environment requests it."""
    root, folder = os.environ.get(ROOT), os.environ.get(JOURNALS)
    if not root or not folder:
        return
    journals = Path(folder)
    journals.mkdir(0o700, parents=True, exist_ok=True)
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    text = boot_id.read_text().strip() if boot_id.exists() else ""
    install(Recorder(Path(root), next_journal(journals), text))
