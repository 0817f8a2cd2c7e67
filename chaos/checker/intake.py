"""What lies in the run directories, looked at as bytes before an engine reads it.

Here is found what an engine would pass over in silence: empty files, copies, lines that a killed writer tore.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos.trace.schema import RAW_DIR, SUFFIX

#: Converted traces: the same columns, as Parquet files, instead of `raw/`.
PARQUET_DIR = "parquet"
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
class Intake:
    """What there is to read. A directory of `parquet` holds Parquet files, which may lie in folders."""

    raw: tuple[RawFile, ...]
    parquet: tuple[Path, ...]
    #: Of the Parquet files.
    parquet_bytes: int
    #: What makes a run directory unfit, by directory: the verdict of its runs is at best "unknown".
    troubles: dict[Path, tuple[str, ...]]
    #: Run directories with a file that is there twice.
    copied: frozenset[Path] = frozenset()


def take_in(run_dirs: list[Path]) -> Intake:
    """Look at the run directories.

    Raises:
        IntakeError: a directory does not exist, or holds neither raw lines nor Parquet files.
    """
    raw: list[RawFile] = []
    parquet: dict[Path, dict[Path, int]] = {}
    troubles: dict[Path, list[str]] = defaultdict(list)
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise IntakeError("the same run directory was named twice")
    for run_dir in run_dirs:
        if not run_dir.is_dir():
            raise IntakeError(f"{run_dir} is no directory")
        files = sorted((run_dir / RAW_DIR).glob(f"*{SUFFIX}"))
        if files:
            raw += [_look_at(run_dir, path) for path in files]
        elif columns := list((run_dir / PARQUET_DIR).rglob("*.parquet")):
            parquet[run_dir] = {path: path.stat().st_size for path in sorted(columns)}
        else:
            raise IntakeError(
                f"{run_dir} holds no trace: neither {RAW_DIR}/*{SUFFIX} nor {PARQUET_DIR}/*.parquet"
            )
    hashes: list[tuple[str, Path, Path]] = []
    for file in raw:
        if file.bytes == 0:
            troubles[file.run_dir].append(f"{file.path.name} is empty")
        else:
            hashes.append((file.sha256, file.run_dir, file.path))
    hashes += _hashes_of_equally_large(parquet)
    seen: dict[str, tuple[Path, Path]] = {}
    copied: set[Path] = set()
    for sha256, run_dir, path in hashes:
        first_dir, first = seen.setdefault(sha256, (run_dir, path))
        if first is not path:
            for concerned in {run_dir, first_dir}:
                troubles[concerned].append(f"{path} is a copy of {first}")
                copied.add(concerned)
    said_of = {path: tuple(said) for path, said in troubles.items()}
    folders = tuple(run_dir / PARQUET_DIR for run_dir in parquet)
    parquet_bytes = sum(sum(sizes.values()) for sizes in parquet.values())
    return Intake(tuple(raw), folders, parquet_bytes, said_of, frozenset(copied))


def _hashes_of_equally_large(parquet: dict[Path, dict[Path, int]]) -> Iterator[tuple[str, Path, Path]]:
    """Of Parquet files, by run directory and path, with their sizes: one with a size of its own is no copy,
    and need not be read. SHA-256, run directory and path."""
    times = Counter(size for sizes in parquet.values() for size in sizes.values())
    for run_dir, sizes in parquet.items():
        for path, size in sizes.items():
            if times[size] > 1:
                with path.open("rb") as file:
                    yield hashlib.file_digest(file, "sha256").hexdigest(), run_dir, path


def _look_at(run_dir: Path, path: Path) -> RawFile:
    digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return RawFile(run_dir, path, size, lines, last != b"\n", digest.hexdigest())
