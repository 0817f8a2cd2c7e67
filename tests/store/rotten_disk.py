"""A simulated disk with pages that it cannot read any more (EIO), until they are written as a whole."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from dledger.infra.files import disk as disk_module
from dledger.infra.files.disk import Buffer
from dledger.testing.virtual.sim_disk import SimDisk


class RottenDisk(SimDisk):
    def __init__(self) -> None:
        super().__init__()
        self._bad: set[tuple[int, int]] = set()  # (file, offset of the page)

    def rot(self, path: Path, offset: int) -> None:
        """From now on the page with this byte cannot be read."""
        file = self._file(path)
        self._bad.add((id(file), offset - offset % disk_module.PAGE))

    @property
    def is_rotten(self) -> bool:
        present = {id(file) for file in self._names.values()}
        return any(file in present for file, _ in self._bad)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        file = self._handle(handle).file
        for bad, begin in self._bad:
            if bad == id(file) and begin < offset + size and offset < begin + disk_module.PAGE:
                raise OSError(errno.EIO, "the medium is bad")
        return super().pread(handle, size, offset)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        file = self._handle(handle).file
        end = offset + sum(map(len, buffers))
        for bad, begin in sorted(self._bad):
            page_end = min(begin + disk_module.PAGE, len(file.cache))
            if bad != id(file) or begin >= end or offset >= page_end:
                continue
            if offset > begin or end < page_end:
                raise OSError(errno.EIO, "the rest of the page cannot be read")
            self._bad.discard((bad, begin))
        return super().pwritev(handle, buffers, offset)
