"""File systems of a few MiB under the nodes of a cluster: mounted ones, or a quota in the file layer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest

from tests.process.cluster import ProcessCluster

BALLAST = "ballast"
NODES = ("n1", "n2", "n3")
DID_NOT_RUN = "TEST ON MOUNTED FILE SYSTEMS DID NOT RUN"


class SmallDisks(Protocol):
    """Made before the cluster, filled up and freed while it runs."""

    def attach(self, cluster: ProcessCluster) -> None:
        """The cluster is made now, and not started yet."""

    def fill(self, node: str, leave: int = 0) -> None:
        """Put a file there that leaves so many bytes free."""

    def free(self, node: str) -> None:
        """Remove that file."""


class MountedDisks:
    """A tmpfs under the directory of each node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def attach(self, cluster: ProcessCluster) -> None:
        for node in cluster.members:
            assert (self._folder / node).is_mount()

    def fill(self, node: str, leave: int = 0) -> None:
        fill_up(self._folder / node, leave)

    def free(self, node: str) -> None:
        (self._folder / node / BALLAST).unlink()


class QuotaDisks:
    """What the nodes believe of their disks: no more than `capacity` bytes in their directories."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self._folder = folder
        self._capacity = capacity

    def attach(self, cluster: ProcessCluster) -> None:
        cluster.inject(*cluster.members, capacity=self._capacity)

    def fill(self, node: str, leave: int = 0) -> None:
        used = 0
        for path in (self._folder / node).rglob("*"):
            with suppress(FileNotFoundError):  # removed meanwhile
                used += path.stat().st_size
        with (self._folder / node / BALLAST).open("ab") as file:
            file.truncate(max(0, self._capacity - used - leave))

    def free(self, node: str) -> None:
        (self._folder / node / BALLAST).unlink()


@contextmanager
def small_disks(kind: str, folder: Path, capacity: int) -> Iterator[SmallDisks]:
    """`kind` "mounted" or "quota". Skips, and says so, where nothing may be mounted."""
    if kind == "quota":
        yield QuotaDisks(folder, capacity)
        return
    with mounted([folder / node for node in NODES], capacity):
        yield MountedDisks(folder)


@contextmanager
def mounted(targets: Sequence[Path], capacity: int) -> Iterator[None]:
    """A tmpfs under each of these directories, which are made. Skips where nothing may be mounted."""
    done: list[Path] = []
    try:
        for target in targets:
            target.mkdir()
            _mount(target, capacity)
            done.append(target)
        yield
    finally:
        for target in done:
            subprocess.run(["umount", "--lazy", str(target)], check=False)


def fill_up(folder: Path, leave: int = 0) -> None:
    """A file that leaves so many bytes free on the file system of a folder."""
    left = shutil.disk_usage(folder).free - leave
    with suppress(OSError), (folder / BALLAST).open("ab", buffering=0) as file:
        while left > 0:  # an error: somebody took the rest meanwhile
            left -= file.write(bytes(min(left, 64 << 10)))


def _mount(target: Path, capacity: int) -> None:
    if why := _why_not_mounted(target, capacity):
        pytest.skip(f"{DID_NOT_RUN}: {why}")


def _why_not_mounted(target: Path, capacity: int) -> str:
    """Mounts a tmpfs there; "", or why that could not be done."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={capacity},mode=0700", "tmpfs", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    if done.returncode:
        return done.stderr.strip().partition("\n")[0].removeprefix(f"mount: {target}: ")
    return ""


@cache
def _may_mount() -> bool:
    with TemporaryDirectory() as folder:
        if _why_not_mounted(Path(folder), 1 << 20):
            return False
        subprocess.run(["umount", "--lazy", folder], check=False)
        return True


#: The layer of files stands in for mounted ones: where these are tested, it has the time of long runs only.
KINDS = ("mounted", pytest.param("quota", marks=pytest.mark.long if _may_mount() else ()))
