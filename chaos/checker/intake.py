"""Inspection of the files in run directories, before an engine reads them.

Detects defects that an engine would ignore: empty files, copies, and incomplete lines of killed writers.
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

#: Directory of a converted trace: the same columns in Parquet files, instead of `raw/`.
PARQUET_DIR = "parquet"
PARQUET_SUFFIX = ".parquet"
#: Parquet files start and end with these bytes. The length of the footer precedes the final ones.
_MAGIC = b"PAR1"
_TAIL = Struct("<I4s")
_BLOCK_BYTES = 1 << 20


class IntakeError(Exception):
    """Raised if there is nothing to check. The text states the reason."""


@dataclass(frozen=True, slots=True)
class RawFile:
    """One file of a writer. `torn`: the file does not end with a line break. `bytes`: its size."""

    run_dir: Path
    path: Path
    bytes: int
    lines: int
    torn: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class ColumnFile:
    """One Parquet file of a converted trace, at any depth below `folder`."""

    run_dir: Path
    path: Path
    bytes: int

    @property
    def folder(self) -> Path:
        return self.run_dir / PARQUET_DIR


@dataclass(frozen=True, slots=True)
class Intake:
    """The readable files of the run directories, and their defects."""

    raw: tuple[RawFile, ...]
    parquet: tuple[ColumnFile, ...]
    #: Defects by run directory. They limit the verdict of the directory's runs to "unknown".
    troubles: dict[Path, tuple[str, ...]]
    #: Run directories with a duplicated file.
    copied: frozenset[Path] = frozenset()

    @property
    def parquet_bytes(self) -> int:
        return sum(file.bytes for file in self.parquet)


def inspect_runs(run_dirs: list[Path]) -> Intake:
    """Inspect the run directories. Unreadable files are listed among the defects.

    Raises:
            IntakeError: a directory cannot be read, or has no lines and no Parquet files; or no file is
            readable.
    """
    raw: list[RawFile] = []
    parquet: list[ColumnFile] = []
    troubles: dict[Path, list[str]] = defaultdict(list)
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise IntakeError("the same run directory is named twice")
    for run_dir in run_dirs:
        lines, columns = _files(run_dir)
        for path in lines or columns:
            try:
                _require_regular(path)
                if lines:
                    raw.append(inspect_file(run_dir, path))
                else:
                    parquet.append(_inspect_parquet(run_dir, path))
            except (OSError, IntakeError) as error:
                name = shown(path.relative_to(run_dir))
                reason = error.strerror if isinstance(error, OSError) else str(error)
                troubles[run_dir].append(f"{name} could not be read: {reason}")
    if not raw and not parquet:
        raise IntakeError("; ".join(reason for all_said in troubles.values() for reason in all_said))
    for file in raw:
        if file.bytes == 0:
            troubles[file.run_dir].append(f"{file.path.name} is empty")
    copied = set()
    for copy, first in _copies(raw, parquet):
        for concerned in {copy[0], first[0]}:
            troubles[concerned].append(f"{copy[1]} is a copy of {first[1]}")
            copied.add(concerned)
    defects_of = {path: tuple(reason) for path, reason in troubles.items()}
    return Intake(tuple(raw), tuple(parquet), defects_of, frozenset(copied))


def _files(run_dir: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of lines and, if there are none, the Parquet files."""
    try:
        str(run_dir.absolute()).encode()
        if not run_dir.is_dir():
            raise IntakeError(f"{run_dir} does not exist or is not a directory")
        folder, columns = run_dir / RAW_DIR, run_dir / PARQUET_DIR
        # Not by a glob, which ignores unreadable directories.
        lines = sorted(
            path for path in _below(folder) if path.name.endswith(SUFFIX) and path.parent == folder
        )
        if lines:
            return lines, []
        if parquet_files := sorted(path for path in _below(columns) if path.name.endswith(PARQUET_SUFFIX)):
            return [], parquet_files
    except UnicodeEncodeError:
        raise IntakeError(
            f"the name of {shown(run_dir)} is not UTF-8, so Java cannot open it; rename it"
        ) from None
    except OSError as error:
        raise IntakeError(f"cannot read {run_dir}: {error.strerror}") from error
    raise IntakeError(
        f"{run_dir} contains no trace: neither {RAW_DIR}/*{SUFFIX} nor {PARQUET_DIR}/*{PARQUET_SUFFIX}"
    )


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder. Yields none if the folder does not exist.

    Raises:
        OSError: a folder cannot be read.
    """

    def stop(error: OSError) -> None:
        raise error

    if folder.exists():
        for parent, folders, names in os.walk(folder, onerror=stop):
            # Yield folders with the name of a file, so that they are reported.
            wrong = (name for name in folders if name.endswith((SUFFIX, PARQUET_SUFFIX)))
            yield from (Path(parent, name) for name in (*names, *wrong))


def _require_regular(path: Path) -> None:
    """Require a regular file with a name that every engine reads.

    Raises:
        OSError: the file does not exist.
        IntakeError: the file is unsuitable.
    """
    if not S_ISREG(path.stat().st_mode):
        raise IntakeError("it is not a regular file")
    if path.name.startswith((".", "_")):
        raise IntakeError("Spark ignores names that start with . or _; rename it")
    if any(0xD800 <= ord(character) < 0xE000 for character in path.name):
        raise IntakeError("its name is not UTF-8, so Java cannot open it; rename it")


def _copies(
    raw: list[RawFile], parquet: list[ColumnFile]
) -> Iterator[tuple[tuple[Path, Path], tuple[Path, Path]]]:
    """Yield duplicated files: (run directory, path) of the later and of the first one."""
    hashes = [(file.sha256, file.run_dir, file.path) for file in raw if file.bytes]
    hashes += _hashes_of_equally_large(parquet)
    seen: dict[str, tuple[Path, Path]] = {}
    for sha256, run_dir, path in hashes:
        first = seen.setdefault(sha256, (run_dir, path))
        if first[1] is not path:
            yield (run_dir, path), first


def _hashes_of_equally_large(parquet: list[ColumnFile]) -> Iterator[tuple[str, Path, Path]]:
    """Yield SHA-256, run directory and path of Parquet files. Files with a unique size are not read, because
    they cannot be copies."""
    times = Counter(file.bytes for file in parquet)
    for file in parquet:
        if times[file.bytes] > 1:
            with file.path.open("rb") as opened:
                yield hashlib.file_digest(opened, "sha256").hexdigest(), file.run_dir, file.path


def _inspect_parquet(run_dir: Path, path: Path) -> ColumnFile:
    """Check the start and the end of a Parquet file.

    Raises:
        OSError: the file cannot be read.
        IntakeError: the file is not Parquet, or is truncated.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(len(_MAGIC))
        file.seek(max(0, size - _TAIL.size))
        tail = file.read()
    if head != _MAGIC:
        raise IntakeError("it is not a Parquet file")
    footer, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, b"")
    if magic != _MAGIC or footer + len(_MAGIC) + _TAIL.size > size:
        raise IntakeError("it is truncated: the footer is missing")
    return ColumnFile(run_dir, path, size)


def inspect_file(run_dir: Path, path: Path) -> RawFile:
    """Return the size, number of lines, and hash of a file."""
    digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return RawFile(run_dir, path, size, lines, last != b"\n", digest.hexdigest())
