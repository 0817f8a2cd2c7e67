"""Master and slave over real files of a CommitLog, which the slave opens again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from broker_adapter.log.classic.commit_log_files import CommitLogFiles, CommitLogOptions
from broker_adapter.log.classic.ha.log import read_all
from broker_adapter.log.classic.ha.options import Handshake, HaOptions
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.wire.message import MessageRecord, encode
from dledger.infra.files.disk import OsDisk
from tests.broker_adapter.ha.pair import QUICK, following, master, wire
from tests.node.local import until

FILE_SIZE = 4096
WHOLE = replace(QUICK, whole_log=True)


@contextmanager
def opened(root: Path) -> Iterator[CommitLogFiles]:
    log = open_commit_log(root, OsDisk(), CommitLogOptions(file_size=FILE_SIZE))
    try:
        yield log
    finally:
        log.close()


def fill(log: CommitLogFiles, count: int, rng: Random) -> None:
    for _ in range(count):
        message = MessageRecord("t", rng.randbytes(rng.randrange(600)), store_timestamp=1_700_000_000_000)
        (place,) = log.place([len(encode(message))])
        log.append([encode(message._replace(physical_offset=place))])


def files(root: Path) -> dict[str, bytes]:
    """Without those that were made ahead."""
    found = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    return {name: data for name, data in found.items() if data.strip(b"\0")}


@pytest.mark.parametrize("handshake", [Handshake.OFF, Handshake.REQUIRED])
async def test_files_are_equal_whenever_the_slave_stops(tmp_path: Path, handshake: Handshake) -> None:
    rng = Random(7)
    with opened(tmp_path / "master") as log:
        fill(log, 40, rng)
        options = HaOptions(transfer_batch_bytes=700)
        async with master(log, options) as service, wire(service.address) as between:
            between.cut_after = lambda number: rng.randrange(300, 9_000)
            for _ in range(6):
                with opened(tmp_path / "slave") as copy:
                    assert copy.recovery.cut_bytes == 0  # a slave's log ends where a record ends
                    some = min(copy.end_offset + 3_000, log.end_offset)
                    async with following(copy, between.address, handshake=handshake, options=WHOLE):
                        await until(lambda copied=copy, at=some: copied.end_offset >= at)
                    end = copy.end_offset
                    assert read_all(copy, 0, end) == read_all(log, 0, end)
                fill(log, 5, rng)
                service.grown()
            between.cut_after = lambda number: None
            with opened(tmp_path / "slave") as copy:
                async with following(copy, between.address, handshake=handshake, options=WHOLE):
                    await until(lambda: copy.end_offset == log.end_offset)
    assert len(files(tmp_path / "master")) > 3 and files(tmp_path / "slave") == files(tmp_path / "master")


async def test_a_slave_that_lost_the_end_of_its_log_goes_on(tmp_path: Path) -> None:
    """As a power failure leaves it: what was written and not synced is gone, and its master has it."""
    rng = Random(8)
    with opened(tmp_path / "master") as log, opened(tmp_path / "slave") as copy:
        fill(log, 60, rng)
        async with master(log) as service:
            async with following(copy, service.address, options=WHOLE):
                await until(lambda: copy.end_offset == log.end_offset)
            ends, at = [], 0
            while at < copy.end_offset:
                at += int.from_bytes(copy.read(at, 4))
                ends.append(at)
            for end in rng.sample(ends, 5):
                copy.truncate(end)
                for handshake in (Handshake.REQUIRED, Handshake.OFF):
                    async with following(copy, service.address, handshake=handshake, options=WHOLE):
                        await until(lambda: copy.end_offset == log.end_offset)
                    assert read_all(copy, 0, copy.end_offset) == read_all(log, 0, log.end_offset)
