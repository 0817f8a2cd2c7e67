"""Files whose sum is right and whose content is not: the log tells what they would have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.infra.files.disk import Disk
from dledger.store.damage import read_damages
from dledger.store.format.properties import format_properties
from dledger.store.state_files import read_base, read_checkpoint
from dledger.testing.virtual.sim_disk import SimDisk

_FILE = Path("/node/file")
_CHECKPOINT = {
    **dict.fromkeys(("endIndex", "endTerm", "endPos", "endChainCrc", "committedIndex", "beginIndex"), 1),
    **dict.fromkeys(("baseTerm", "basePos", "baseChainCrc"), 0),
}


@pytest.mark.parametrize(
    ("read", "values", "nothing"),
    [
        (read_checkpoint, {}, None),
        (read_checkpoint, {**_CHECKPOINT, "termRuns": "1:2:3"}, None),
        (read_checkpoint, {**_CHECKPOINT, "termRuns": "", "endTerm": "x"}, None),
        (read_base, {"baseIndex": 1}, None),
        (read_base, {"baseIndex": "", "baseTerm": 1, "basePos": 1, "baseChainCrc": 1, "resetting": 0}, None),
        (read_damages, {}, ()),
        (read_damages, {"count": 1}, ()),
        (read_damages, {"count": 1, "damage.0": "1,2,3", "file.0": "f", "reason.0": "r"}, ()),
    ],
)
def test_an_intact_file_of_another_content_counts_as_none(
    read: Callable[[Disk, Path], Any], values: dict[str, str | int], nothing: object
) -> None:
    disk = SimDisk()
    disk.mkdir(_FILE.parent)
    disk.set_content(_FILE, format_properties(values))
    assert read(disk, _FILE) == nothing
