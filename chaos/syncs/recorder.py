"""Records in a node's process which bytes of its files were written and which syncs have returned.

`install` replaces the functions of `os` that change files, before any module of the product is imported. It
shares nothing with the product: it looks at the arguments of the calls, at the files behind descriptors, and
at the bytes that are written. What it does not see (a write past these functions) is never taken for durable.

The journal (`chaos.syncs.journal`) is a mapped file: each line is in the page cache before the call that it
is about goes on, so SIGKILL loses none. Times are CLOCK_MONOTONIC in ns.
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

#: In the environment of a node: the directory whose files are watched, and where journals go.
ROOT, JOURNALS = "DLEDGER_SYNCS_ROOT", "DLEDGER_SYNCS_JOURNALS"
DATA, TERM_FILE = "data", "currterm"

Buffer = bytes | bytearray | memoryview
_mono = time.monotonic_ns

# docs/formats.md, "Entry": magic, size, index, term, pos.
_HEADER = struct.Struct(">iiqqq")
_ENTRY_MAGICS = (1, 2)
_MAGIC_BYTES = re.compile(rb"(?=\0\0\0[\1\2])")
_LEAST_ENTRY = 48


class _File:
    """A watched file. `base`: position of its first byte in the log; -1: it is none of the log's."""

    __slots__ = ("base", "end", "inode", "partial")

    def __init__(self, inode: int, base: int) -> None:
        self.inode = inode
        self.base = base
        self.end = 0  # of the last write
        self.partial = b""  # its last bytes, too few to tell whether an entry begins there


class Recorder:
    """Of the files below `root`: data files (`data/`) and the file of term and vote. Any thread."""

    def __init__(self, root: Path, journal: Path, boot_id: str) -> None:
        """FileExistsError if there is such a journal. Lists what `root` holds now."""
        self._root = root.resolve()
        self._lock = Lock()
        self._journal = MappedFile(journal)
        self._lines = 0
        self._in_flight: set[int] = set()
        self._files: dict[tuple[int, int], _File] = {}
        self._line(b"life %d %d %s" % (_mono(), os.getpid(), boot_id.encode() or b"-"))
        for name, found in sorted(_listed(self._root)):
            self._line(b"has %d %d %s" % (found.st_ino, found.st_size, _quoted(name)))
            self._files[found.st_dev, found.st_ino] = _File(found.st_ino, _base_of(name))
        self._line(b"listed %d" % _mono())

    def _line(self, text: bytes) -> int:
        """Under the lock, but for the first lines. The line's number."""
        self._journal.write(text + b"\n")
        self._lines += 1
        return self._lines

    def _name(self, path: Any) -> str | None:
        """Relative to the root, if the file is watched."""
        if isinstance(path, int):
            return None
        asked = Path(os.fsdecode(path))
        full = asked.parent.resolve() / asked.name
        if not full.is_relative_to(self._root):
            return None
        name = str(full.relative_to(self._root))
        return name if is_watched(name) else None

    def _file(self, handle: int) -> _File | None:
        found = os.fstat(handle)
        return self._files.get((found.st_dev, found.st_ino))

    # -- what the functions of `os` are replaced by

    def open(self, call: Callable[..., int], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        name = self._name(path) if writes else None
        if name is None:
            return call(path, flags, *args, **kwargs)
        existed = os.path.lexists(path)
        handle = call(path, flags, *args, **kwargs)
        found = os.fstat(handle)
        with self._lock:
            key = (found.st_dev, found.st_ino)
            if not existed:
                self._files[key] = _File(found.st_ino, _base_of(name))
                self._line(b"made %d %d %s" % (_mono(), found.st_ino, _quoted(name)))
            elif flags & os.O_TRUNC and key in self._files:
                self._line(b"cut %d %d 0" % (_mono(), found.st_ino))
        return handle

    def write(self, call: Callable[[], int], handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """`offset` -1: where the descriptor is."""
        file = self._file(handle)
        if file is None:
            return call()
        if offset < 0:
            offset = os.lseek(handle, 0, os.SEEK_CUR)
        data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        with self._lock:
            before = (file.end, file.partial)
            what = _entries(file, data, offset) if file.base >= 0 else b"=" + data.hex().encode()
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
                    _entries(file, data[: max(0, done)], offset)  # where the rest goes on

    def sync(self, call: Callable[[Any], None], handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        file = self._file(number)
        folder = None if file is not None else self._folder(number)
        if file is None and folder is None:
            return call(handle)
        with self._lock:
            began, before = _mono(), self._lines
            flying = b",".join(b"%d" % one for one in sorted(self._in_flight)) or b"-"
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
        """Relative to the root; None: it is no directory there."""
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
            found = os.lstat(new)
            if replaced != (found.st_dev, found.st_ino):
                self._files.pop(replaced, None)
            if after is not None and before is None:  # it was written where nobody looked
                self._line(b"odd %d %d" % (_mono(), found.st_ino))
            text = (_mono(), found.st_ino, _quoted(before or "-"), _quoted(after or "-"))
            self._line(b"name %d %d %s %s" % text)
            file = self._files.get((found.st_dev, found.st_ino))
            if file is not None and after is not None:
                file.base = _base_of(after)
        return None

    def unlink(self, call: Callable[..., None], path: Any, **kwargs: Any) -> None:
        name = self._name(path)
        if name is not None:
            with self._lock:
                self._line(b"gone %d %s" % (_mono(), _quoted(name)))
                # Its number may be given to another file.
                self._files.pop(_identity(path), None)
        call(path, **kwargs)

    def odd(self, handle: int) -> None:
        """A file may be written to in a way that is not seen."""
        file = self._file(handle)
        if file is not None:
            with self._lock:
                self._line(b"odd %d %d" % (_mono(), file.inode))


def _identity(path: Any) -> tuple[int, int]:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return (-1, -1)
    return (found.st_dev, found.st_ino)


def is_watched(name: str) -> bool:
    """A data file, the file of term and vote, or what is to replace one; by its name below the root."""
    folder, _, last = name.rpartition("/")
    return folder == DATA or (folder == "" and last.startswith(TERM_FILE))


def _listed(root: Path) -> list[tuple[str, os.stat_result]]:
    found = []
    for folder, prefix in ((root, ""), (root / DATA, f"{DATA}/")):
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and is_watched(prefix + entry.name):
                found.append((prefix + entry.name, entry.stat(follow_symlinks=False)))
    return found


def _base_of(name: str) -> int:
    """docs/formats.md: data files are named by their first position."""
    folder, _, last = name.rpartition("/")
    digits = last.partition(".")[0]
    return int(digits) if folder == DATA and digits.isdecimal() else -1


def _entries(file: _File, data: bytes, offset: int) -> bytes:
    """The entries that begin in what is written, as `index:term:offset:size,size...`, one such run for each
    term, `;` between; `-`: none."""
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
    # The last entry may say a wrong size: the next begins wherever it is found.
    file.end, file.partial = end, data[1 - _HEADER.size :]
    return ";".join(runs).encode() or b"-"


def _following(data: bytes, offset: int, at: int, size: int, base: int) -> int:
    """Where what follows an entry begins. A copy takes damaged entries along: if no entry follows where the
    size says, but one begins within it, then the size is what is damaged."""
    stated = at + size
    if stated == offset + len(data) or _is_header(data, stated - offset, base + stated):
        return stated
    found = _next_header(data, offset, at + 1, base)
    return found if found < stated and found + _HEADER.size <= offset + len(data) else stated


def _next_header(data: bytes, offset: int, at: int, base: int) -> int:
    """The next place, from `at` on, that says of itself that an entry begins there; if there is none, where
    the last bytes begin that are too few to tell."""
    for found in _MAGIC_BYTES.finditer(data, at - offset):
        if _is_header(data, found.start(), base + offset + found.start()):
            return offset + found.start()
    return max(at, offset + len(data) - _HEADER.size + 1)


def _is_header(data: bytes, at: int, pos: int) -> bool:
    if len(data) < at + _HEADER.size:
        return False
    magic, size, _, _, its_pos = _HEADER.unpack_from(data, at)
    return magic in _ENTRY_MAGICS and its_pos == pos and size >= _LEAST_ENTRY


def _quoted(name: str) -> bytes:
    return quote(name).encode()


def install(recorder: Recorder) -> None:
    """Replace the functions of `os` that write, for good."""
    system: Any = os  # its functions are given away
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

    class Mapped(mmap.mmap):
        """Whatever is written through a mapping is not seen."""

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
        (mmap, "mmap", Mapped),
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
                    continue  # a number that is none of a file
        return call(*args, **kwargs)

    return copy


def install_from_environment() -> None:
    """Watch what the environment names; nothing if it names nothing."""
    root, folder = os.environ.get(ROOT), os.environ.get(JOURNALS)
    if not root or not folder:
        return
    journals = Path(folder)
    journals.mkdir(0o700, parents=True, exist_ok=True)
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    text = boot_id.read_text().strip() if boot_id.exists() else ""
    install(Recorder(Path(root), next_journal(journals), text))
