"""An archive of the classes that Spark uses: the JVM maps it instead of looking up 24,000 of them in 280
jars, parsing and verifying them (application class data sharing, JEP 350).

The JVM of the second run writes one when it ends, after the command has: it is not worth its price where
runs are not repeated. A later run takes it over when it is whole, and puts its checksum into its name: a JVM
goes on without an archive that was not made for it, but dies of one that is damaged.
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Set to OFF in the environment: no archive is used, and none made.
VARIABLE = "DLEDGER_CLASS_ARCHIVE"
OFF = "off"
_SUFFIX, _UNFINISHED, _RUN_ONCE = ".jsa", ".unfinished", ".once"
#: What was not written to for so long belongs to a process that was killed.
_ABANDONED_S = 600
#: Each takes about 190 MB; that of another Java or Spark than today's is rarely needed again.
_KEPT = 2
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """`made`: it is there, else the JVM makes it when it ends."""

    path: Path
    made: bool

    @property
    def options(self) -> str:
        """For the JVM, which is to say nothing about archives, whatever it thinks of them."""
        flag = "SharedArchiveFile" if self.made else "ArchiveClassesAtExit"
        return f'-Xshare:auto -Xlog:cds*=off "-XX:{flag}={self.path}"'


def class_archive(
    java_version: str, class_path: Iterable[Path], environment: Mapping[str, str] = os.environ
) -> ClassArchive | None:
    """The archive of this Java and these jars. None: it is switched off, this is the first run, there is no
    place for it, or another process is writing it.

    `java_version`: all that `java -version` says.
    """
    if environment.get(VARIABLE) == OFF:
        return None
    try:
        folder = _cache_dir(environment)
        name = _name(java_version, class_path)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in sorted(folder.glob(f"*{_UNFINISHED}")):
            _take_over(left)
        for made in sorted(folder.glob(f"{name}.*{_SUFFIX}")):
            if made == _named(made):
                return ClassArchive(made, made=True)
            made.unlink()
        if list(folder.glob(f"{name}.*{_UNFINISHED}")) or not os.access(folder, os.W_OK):
            return None
        first = folder / f"{name}{_RUN_ONCE}"
        if not first.exists():
            first.touch()
            return None
    except (OSError, RuntimeError):
        # Another process has just taken it over, the disk fails, or the user has no home.
        return None
    return ClassArchive(folder / f"{name}.{os.getpid()}-{time.time_ns()}{_UNFINISHED}", made=False)


def _cache_dir(environment: Mapping[str, str]) -> Path:
    caches = Path(environment.get("XDG_CACHE_HOME", ""))
    # A relative path does not count, says the XDG specification.
    base = caches if caches.is_absolute() else Path.home() / ".cache"
    return base / "dledger" / "spark-classes"


def _name(java_version: str, class_path: Iterable[Path]) -> str:
    key = hashlib.sha256(java_version.encode())
    for jar in class_path:
        known = jar.stat()
        key.update(f"{jar}\0{known.st_size}\0{known.st_mtime_ns}\0".encode())
    return key.hexdigest()[:32]


def _take_over(left: Path) -> None:
    """Put what a JVM has left in its place if it is whole. The JVM writes the head last."""
    with left.open("rb") as file:
        whole = any(file.read(4))
    if whole:
        left.replace(_named(left))
        by_age = sorted(left.parent.glob(f"*{_SUFFIX}"), key=lambda each: each.stat().st_mtime)
        for old in by_age[:-_KEPT]:
            old.unlink(missing_ok=True)
    elif time.time() - left.stat().st_mtime > _ABANDONED_S:
        left.unlink(missing_ok=True)


def _named(path: Path) -> Path:
    """Where an archive with this content belongs."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return path.with_name(f"{path.name.partition('.')[0]}.{checksum:08x}{_SUFFIX}")
