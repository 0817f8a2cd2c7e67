"""A slave whose disk fails, or whose master cannot be reached in an odd way."""

from __future__ import annotations

import ssl
from dataclasses import replace

import pytest

from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.ha.client import HaClientState
from broker_adapter.log.classic.ha.group_transfer import SlaveAck
from broker_adapter.log.classic.ha.options import Handshake
from dledger import ConfigError
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.classic.log_helpers import opened, put
from tests.broker_adapter.ha.memory_log import FILE_SIZE, MemoryLog
from tests.broker_adapter.ha.pair import QUICK, following, master
from tests.node.local import until

DURABLE = replace(QUICK, whole_log=True, report_durable=True)
LONG_MS = 600_000
BOTH = pytest.mark.parametrize("handshake", [Handshake.OFF, Handshake.REQUIRED])


def empty_copy(disk: SimDisk) -> CommitLogFiles:
    return opened(disk, file_size=FILE_SIZE)


@BOTH
@pytest.mark.parametrize("operation", ["fdatasync", "pwritev"])
async def test_what_the_disk_of_a_slave_did_not_take_is_never_acknowledged(
    handshake: Handshake, operation: str
) -> None:
    log, disk, failures = MemoryLog(), SimDisk(), list[Exception]()
    copy = empty_copy(disk)
    async with (
        master(log) as service,
        following(
            copy, service.address, handshake=handshake, options=DURABLE, on_failure=failures.append
        ) as client,
    ):
        await until(lambda: len(service.status().slaves) == 1)
        end = log.put(b"first")
        service.grown()
        assert await service.wait_acked(end, LONG_MS) is SlaveAck.PUT_OK
        disk.fail(operation)
        log.put(b"second")
        service.grown()
        await until(lambda: len(failures) == 1)
        assert isinstance(failures[0], BrokerError) and failures[0].status is Status.LOG_FAILED
        assert client.status().state is HaClientState.SHUTDOWN
        await until(lambda: not service.status().slaves)
        assert service.status().push2slave_max_offset == end == copy.flushed_offset


@BOTH
async def test_what_a_slave_reports_first_is_durable(handshake: Handshake) -> None:
    """It was master a moment ago, or was killed: not all that it has written is on its disk."""
    disk = SimDisk()
    copy = empty_copy(disk)
    log = MemoryLog()
    for record in put(copy, b"a", b"b"):
        log.data += record
    assert copy.flushed_offset == 0
    async with (
        master(log) as service,
        following(copy, service.address, handshake=handshake, options=DURABLE),
    ):
        await until(lambda: len(service.status().slaves) == 1)
        assert copy.flushed_offset == copy.end_offset == service.status().slaves[0].acked


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "127.0.0.1:99999", "a..b:1", "\udcff:1", ":", "x"])
async def test_an_address_that_is_none_is_tried_again_until_there_is_another(address: str) -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(3)
    async with master(log) as service, following(copy, address) as client:
        await until(lambda: client.status().problem != "")
        assert client.status().state is HaClientState.READY
        client.set_master(service.address)
        await until(lambda: copy.end_offset == log.end_offset)


async def test_certificates_that_cannot_be_read_are_read_again() -> None:
    log, copy, tries = MemoryLog(), MemoryLog(), [0]
    log.fill(3)

    def tls() -> ssl.SSLContext:
        tries[0] += 1
        raise ConfigError("half a file")

    async with master(log) as service, following(copy, service.address, tls=tls):
        await until(lambda: tries[0] > 2)
