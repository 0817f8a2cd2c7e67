"""What lies in the run directories, looked at as bytes before an engine reads it.

Here is found what an engine would pass over in silence: empty files, copies, lines that a killed writer tore.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from struct import Struct

from chaos.checker.paths import shown
from chaos.trace.schema import RAW_DIR, SUFFIX

#: Converted traces: the same columns, as Parquet files, instead of `raw/`.
PARQUET_DIR = "parquet"
PARQUET_SUFFIX = ".parquet"
#: Parquet files begin and end with it; before the end stands the length of the footer.
_MAGIC = b"PAR1"
_TAIL = Struct("<I4s")
_BLOCK_BYTES = 1 << 20


class IntakeError(Exception):
    """There is nothing that can be checked; the text says why."""


@dataclass(frozen=True, slots=True)
class RawFile:
    """One file of a writer. `torn`: it does not end with a line break. `bytes` is its size."""

    run_dir: Path
    path: Path
    bytes: int
    lines: int
    torn: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class ColumnFile:
    """One Parquet file of a converted trace, which may lie in folders below `folder`."""

    run_dir: Path
    path: Path
    bytes: int

    @property
    def folder(self) -> Path:
        return self.run_dir / PARQUET_DIR


@dataclass(frozen=True, slots=True)
class Intake:
    """What there is to read: files that can be."""

    raw: tuple[RawFile, ...]
    parquet: tuple[ColumnFile, ...]
    #: What makes a run directory unfit, by directory: the verdict of its runs is at best "unknown".
    troubles: dict[Path, tuple[str, ...]]
    #: Run directories with a file that is there twice.
    copied: frozenset[Path] = frozenset()

    @property
    def parquet_bytes(self) -> int:
        return sum(file.bytes for file in self.parquet)


def take_in(run_dirs: list[Path]) -> Intake:
    """Look at the run directories. A file that cannot be read is told among the troubles.

    Raises:
        IntakeError: a directory cannot be read, or holds neither raw lines nor Parquet files; or none of all
            files can be read.
    """
    raw: list[RawFile] = []
    parquet: list[ColumnFile] = []
    troubles: dict[Path, list[str]] = defaultdict(list)
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise IntakeError("the same run directory was named twice")
    for run_dir in run_dirs:
        lines, columns = _files(run_dir)
        for path in lines or columns:
            try:
                _require_regular(path)
                if lines:
                    raw.append(look_at(run_dir, path))
                else:
                    parquet.append(_look_at_columns(run_dir, path))
            except (OSError, IntakeError) as error:
                name = shown(path.relative_to(run_dir))
                said = error.strerror if isinstance(error, OSError) else str(error)
                troubles[run_dir].append(f"{name} could not be read: {said}")
    if not raw and not parquet:
        raise IntakeError("; ".join(said for all_said in troubles.values() for said in all_said))
    for file in raw:
        if file.bytes == 0:
            troubles[file.run_dir].append(f"{file.path.name} is empty")
    copied = set()
    for copy, first in _copies(raw, parquet):
        for concerned in {copy[0], first[0]}:
            troubles[concerned].append(f"{copy[1]} is a copy of {first[1]}")
            copied.add(concerned)
    said_of = {path: tuple(said) for path, said in troubles.items()}
    return Intake(tuple(raw), tuple(parquet), said_of, frozenset(copied))


def _files(run_dir: Path) -> tuple[list[Path], list[Path]]:
    """The files of lines, and, if there are none, those of columns."""
    try:
        str(run_dir.absolute()).encode()
        if not run_dir.is_dir():
            raise IntakeError(f"{run_dir} is no directory")
        folder, columns = run_dir / RAW_DIR, run_dir / PARQUET_DIR
        # Not by a pattern: that passes over directories that cannot be read.
        lines = sorted(
            path for path in _below(folder) if path.name.endswith(SUFFIX) and path.parent == folder
        )
        if lines:
            return lines, []
        if found := sorted(path for path in _below(columns) if path.name.endswith(PARQUET_SUFFIX)):
            return [], found
    except UnicodeEncodeError:
        raise IntakeError(f"{shown(run_dir)} is not UTF-8, and Java opens no such file; rename it") from None
    except OSError as error:
        raise IntakeError(f"{run_dir} cannot be read: {error.strerror}") from error
    raise IntakeError(
        f"{run_dir} holds no trace: neither {RAW_DIR}/*{SUFFIX} nor {PARQUET_DIR}/*{PARQUET_SUFFIX}"
    )


def _below(folder: Path) -> Iterator[Path]:
    """Everything below a folder that is no folder itself; nothing if there is no such folder.

    Raises:
        OSError: a folder cannot be read.
    """

    def stop(error: OSError) -> None:
        raise error

    if folder.exists():
        for parent, folders, names in os.walk(folder, onerror=stop):
            # A folder in the place of a file is told of.
            wrong = (name for name in folders if name.endswith((SUFFIX, PARQUET_SUFFIX)))
            yield from (Path(parent, name) for name in (*names, *wrong))


def _require_regular(path: Path) -> None:
    """Raises:
    OSError: the file is gone.
    IntakeError: it is none that every engine reads.
    """
    if not S_ISREG(path.stat().st_mode):
        raise IntakeError("it is no regular file")
    if path.name.startswith((".", "_")):
        raise IntakeError("Spark passes over names that begin with . or _; rename it")
    if any(0xD800 <= ord(character) < 0xE000 for character in path.name):
        raise IntakeError("its name is not UTF-8, and Java opens no such file; rename it")


def _copies(
    raw: list[RawFile], parquet: list[ColumnFile]
) -> Iterator[tuple[tuple[Path, Path], tuple[Path, Path]]]:
    """Files that are there twice: (run directory, path) of the later and of the first one."""
    hashes = [(file.sha256, file.run_dir, file.path) for file in raw if file.bytes]
    hashes += _hashes_of_equally_large(parquet)
    seen: dict[str, tuple[Path, Path]] = {}
    for sha256, run_dir, path in hashes:
        first = seen.setdefault(sha256, (run_dir, path))
        if first[1] is not path:
            yield (run_dir, path), first


def _hashes_of_equally_large(parquet: list[ColumnFile]) -> Iterator[tuple[str, Path, Path]]:
    """Of Parquet files: one with a size of its own is no copy, and need not be read. SHA-256, run directory
    and path."""
    times = Counter(file.bytes for file in parquet)
    for file in parquet:
        if times[file.bytes] > 1:
            with file.path.open("rb") as opened:
                yield hashlib.file_digest(opened, "sha256").hexdigest(), file.run_dir, file.path


def _look_at_columns(run_dir: Path, path: Path) -> ColumnFile:
    """Raises:
    OSError: the file cannot be read.
    IntakeError: it does not begin or end as Parquet files do.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(len(_MAGIC))
        file.seek(max(0, size - _TAIL.size))
        tail = file.read()
    if head != _MAGIC:
        raise IntakeError("it is no Parquet file")
    footer, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, b"")
    if magic != _MAGIC or footer + len(_MAGIC) + _TAIL.size > size:
        raise IntakeError("it is torn: its end is missing")
    return ColumnFile(run_dir, path, size)


def look_at(run_dir: Path, path: Path) -> RawFile:
    """Size, lines and hash of a file."""
    digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return RawFile(run_dir, path, size, lines, last != b"\n", digest.hexdigest())
