"""One node on a faulty disk: python -m tests.process.faulty_node --config F --faults G [--rejoin]

The product has no such switch: this module hands a node another disk. `G` is a file of JSON, see `Faults`;
it is read at every operation that may fail, so whatever begins after it was replaced is subject to it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

from dledger.infra.files.disk import Buffer
from dledger.infra.libraries import configure_libraries, configure_node_channels
from tests.node.disk.faulty_disk import FaultyDisk


@dataclass(frozen=True)
class Faults:
    """`capacity`: bytes that the node's directory may hold. `stuck`: what syncs and allocates waits until it
    is not. `slow_ms`: so long takes every fdatasync, besides what it really takes. `die_at`: the process
    kills itself before the first operation that fits, such as "rename base" (by a purge), "rename base to
    reset" (everything is to be removed) or "unlink data/* then rename base", or in the middle of "write IB"
    (an entry that has this tag of dledger.store.format.internal)."""

    capacity: int | None = None
    stuck: bool = False
    slow_ms: int = 0
    die_at: str = ""

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".new")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> Faults:
        return Faults(**json.loads(path.read_text())) if path.exists() else Faults()


class FaultInjectingDisk(FaultyDisk):
    """Does what the file says. Reads have no faults."""

    def __init__(self, root: Path, faults: Path) -> None:
        super().__init__(root)
        self._faults = faults
        self._reached = 0  # steps on the way to where the process is to die
        self._pause = threading.Event()  # never set: the disk takes its time

    def fdatasync(self, handle: int) -> None:
        self._wait_while_stuck()
        if slow_ms := Faults.load(self._faults).slow_ms:
            self._pause.wait(slow_ms / 1000)
        super().fdatasync(handle)

    def sync_directory(self, path: Path) -> None:
        self._wait_while_stuck()
        super().sync_directory(path)

    def allocate(self, handle: int, offset: int, size: int) -> None:
        self._wait_while_stuck()
        self.capacity = Faults.load(self._faults).capacity
        super().allocate(handle, offset, size)

    def free_bytes(self, path: Path) -> int:
        self.capacity = Faults.load(self._faults).capacity
        return super().free_bytes(path)

    def rename(self, old: Path, new: Path) -> None:
        to_reset = " to reset" if new.name == "base" and b"resetting=1" in old.read_bytes() else ""
        self._die_at("rename", new, to_reset)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._die_at("unlink", path)
        super().unlink(path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        point = Faults.load(self._faults).die_at
        if point.startswith("write "):
            content = b"".join(buffers)
            # The body of an internal entry begins with its cluster time, mostly, then its tag.
            if re.search(b"T1.{8}" + point.removeprefix("write ").encode(), content, re.DOTALL):
                super().pwritev(handle, [content[: len(content) // 2]], offset)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().pwritev(handle, buffers, offset)

    def _die_at(self, operation: str, path: Path, purpose: str = "") -> None:
        points = Faults.load(self._faults).die_at.split(" then ")
        done = f"{operation} {path.relative_to(self.root)}{purpose}"
        if fnmatch(done, points[min(self._reached, len(points) - 1)]):
            self._reached += 1
            if self._reached == len(points):
                os.kill(os.getpid(), signal.SIGKILL)

    def _wait_while_stuck(self) -> None:
        while Faults.load(self._faults).stuck:
            self._pause.wait(0.01)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--faults", required=True, type=Path)
    parser.add_argument("--rejoin", action="store_true")
    arguments = parser.parse_args()
    configure_libraries()
    configure_node_channels()
    # These import grpc and numpy, for which the choice has to be made before.
    from dledger.node.run import run_node
    from dledger.node.setup.config import load_config

    config = load_config(arguments.config)
    return run_node(
        config, rejoin=arguments.rejoin, disk=FaultInjectingDisk(config.directory, arguments.faults)
    )


if __name__ == "__main__":
    sys.exit(main())
