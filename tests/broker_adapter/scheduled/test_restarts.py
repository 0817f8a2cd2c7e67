"""Whatever a restart finds of the index of delayed messages, each message comes once, and no recalled one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery_state.commands import Carry, EndDeferred, Ending
from broker_adapter.delivery_state.delay_index import DelayedRow, RowPut
from broker_adapter.delivery_state.records import encode
from broker_adapter.scheduled.delay_file import FILE_NAME, SUFFIXES, DelayFile
from broker_adapter.server.replicated_state import ReplicatedState
from broker_adapter.wire.message import decode
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.scheduled.test_delay_index import DEFER
from tests.broker_adapter.store.helpers import Log
from tests.broker_adapter.store.poison import DELIVERY, Replica
from tests.node.local import until


def as_it_was(path: Path) -> None: ...


def missing(path: Path) -> None:
    for suffix in SUFFIXES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def no_database(path: Path) -> None:
    missing(path)
    path.write_bytes(os.urandom(9_000))


def of_another_group(path: Path) -> None:
    """As a directory that was copied: it has rows, of other messages."""
    missing(path)
    other = DelayFile(path)
    other.write([RowPut(DelayedRow(5 << 16, 5 << 16, 1, 48, 100, 0, "t", b""), 1)], [])
    other.sync()
    other.close()


KINDS = [as_it_was, missing, no_database, of_another_group]


@pytest.mark.slow
@pytest.mark.parametrize("change", KINDS, ids=lambda change: change.__name__)
async def test_a_node_that_starts_again_delivers_each_once(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        delivery = (await cluster.master()).delivery
        handles = []
        for number in range(8):
            at_ms = time.time_ns() // 1_000_000 + (500 if number < 2 else 6_000)
            sent = await delivery.send_delayed(
                "t", OutgoingMessage(b"%d" % number), message_id=f"{number}", deliver_at_ms=at_ms
            )
            handles.append(sent.recall_handle)
        await until(lambda: delivery.figures().held_messages == 6)
        await delivery.recall("t", handles[7])
        root = cluster.programs["n1"].host.root
        await cluster.stop("n1")
        assert (root / FILE_NAME).exists()
        change(root / FILE_NAME)
        await cluster.start("n1")
        delivery = (await cluster.master()).delivery
        await delivery.recall("t", handles[6])
        await until(lambda: delivery.figures().held_messages == 0)
        found: list[bytes] = []
        while batch := await delivery.receive("g", "t", client_id="c", invisible_ms=600_000, wait_ms=1):
            found += [decode(one.record).body for one in batch]
        assert sorted(found) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("change", KINDS, ids=lambda change: change.__name__)
def test_a_dispatcher_that_starts_again_has_the_same_state(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """From the checkpoint, from the whole log, or from an image: digests are equal."""
    log, path = Log(), tmp_path / FILE_NAME
    for number in range(40):
        elements = [DEFER._replace(due_ms=number, topic="T")]
        command = encode(
            [*elements, Carry(number << 16, DEFER), EndDeferred((number - 3) << 16, Ending.MOVED)]
        )
        log.message(DELIVERY, body=command)
    replica = Replica(index=DelayFile(path, batch=3))
    replica.start()
    replica.dispatcher.apply(log.entries[:30])
    replica.dispatcher.close()
    change(path)
    again = Replica(replica.disk, index=DelayFile(path, batch=3))
    known = again.start()
    assert (known == log.entries[29].index) == (change is as_it_was)
    again.dispatcher.apply([entry for entry in log.entries if entry.index > known])
    whole = Replica(index=DelayFile(tmp_path / "whole"))
    whole.start()
    whole.dispatcher.apply(log.entries)
    assert again.image() == whole.image() and len(whole.delivery.deferred) > 10
    given = Replica(index=DelayFile(tmp_path / "given", batch=2))
    given.start()
    given.dispatcher.load([whole.image()])
    assert given.image() == whole.image()
    assert given.delivery.mark_index()[:2] == again.delivery.mark_index()[:2]


def test_an_image_that_is_refused_leaves_nothing_in_the_index(tmp_path: Path) -> None:
    replica = Replica(index=DelayFile(tmp_path / "a", batch=1))
    state = ReplicatedState(replica.metadata, replica.delivery)
    log = Log()
    log.message(DELIVERY, body=encode([DEFER, DEFER]))
    replica.start()
    replica.dispatcher.apply(log.entries)
    saved = state.save()
    with pytest.raises(Exception, match="no image of delivery"):
        state.load(saved[:-1] + bytes([saved[-1] ^ 1]))
    assert not replica.delivery.deferred and not (tmp_path / "a").exists()
    state.load(saved)
    assert state.save() == saved
