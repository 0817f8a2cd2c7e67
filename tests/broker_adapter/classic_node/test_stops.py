"""How a node ends: without a disk that does not answer, and with a number if it cannot begin, or end well."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.commit_log_files import CommitLogOptions
from broker_adapter.log.classic.node import node as node_module
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.server import classic_tables
from broker_adapter.server.program import BrokerProgram
from dledger.infra.files.disk import Buffer, OsDisk
from dledger.node.run import EXIT_FAILED
from tests.broker_adapter.classic_node.classic_pair import ClassicPair
from tests.broker_adapter.classic_node.test_classic_node import messages
from tests.broker_adapter.classic_node.test_role_changes import ASYNC
from tests.broker_adapter.sending import send_to
from tests.node.local import until
from tests.process.cluster import toml_of
from tests.process.forked import environment

_SHORT_S = 0.2
FILE_SIZE = 1 << 16


class StuckDisk(OsDisk):
    """Calls of this name do not return while `may_go` is not set."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.may_go, self.is_stuck = threading.Event(), threading.Event()
        self.may_go.set()

    def _pass(self, name: str) -> None:
        if name == self._name and not self.may_go.is_set():
            self.is_stuck.set()
            self.may_go.wait()

    def fdatasync(self, handle: int) -> None:
        self._pass("fdatasync")
        super().fdatasync(handle)

    def allocate(self, handle: int, offset: int, size: int) -> None:
        self._pass("allocate")
        super().allocate(handle, offset, size)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._pass("pwritev")
        return super().pwritev(handle, buffers, offset)

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        self._pass(path.name)
        return super().open(path, create=create, write=write)


@asynccontextmanager
async def on_disk(folder: Path, disk: OsDisk, fatal: list[Exception]) -> AsyncIterator[ClassicPair]:
    pair = ClassicPair(folder, {"file_size": FILE_SIZE})
    program = pair.programs["n1"] = pair.program("n1", **ASYNC)
    await program.make_node(disk=disk, on_fatal=fatal.append).start()
    await program.start()
    master = await pair.writable("n1")
    await send_to(master, "t", messages("makes the topic"), queue_id=0)
    yield pair


async def send_a_file(program: BrokerProgram) -> None:
    """The log goes on in its second file, and a third one is allocated."""
    for _ in range(4):
        await send_to(program, "t", messages("a" * 20_000), queue_id=0)


@pytest.mark.parametrize("name", ["fdatasync", "allocate"])
async def test_a_node_stops_without_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its process ends without it: the interpreter would wait for as long as the disk does."""
    monkeypatch.setattr(node_module, "_DISK_STOP_S", _SHORT_S)
    disk = StuckDisk(name)
    async with on_disk(tmp_path, disk, []) as pair:
        await until((tmp_path / f"n1/commitlog/{FILE_SIZE:020d}").exists)
        disk.may_go.clear()
        try:
            program = pair.programs["n1"]
            sent = asyncio.ensure_future(send_a_file(program))
            await asyncio.to_thread(disk.is_stuck.wait)
            await program.stop()
            await program.node.stop()
            assert not program.node.is_released
        finally:
            disk.may_go.set()
        monkeypatch.undo()  # the disk has all the time that it needs
        await program.node.stop()
        assert program.node.is_released
        await asyncio.gather(sent, return_exceptions=True)


async def test_a_broker_stops_without_tables_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic_tables, "_STOP_S", _SHORT_S)
    disk = StuckDisk("tables_base.json.tmp")
    monkeypatch.setattr(classic_tables, "OsDisk", lambda: disk)
    async with on_disk(tmp_path, OsDisk(), []) as pair:
        disk.may_go.clear()
        try:
            program = pair.programs["n1"]
            await send_to(program, "u", messages("makes another topic"), queue_id=0)
            await asyncio.to_thread(disk.is_stuck.wait)
            await program.stop()
        finally:
            disk.may_go.set()
        await program.node.stop()
        assert program.node.is_released


async def test_a_start_that_is_given_up_leaves_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_DISK_STOP_S", _SHORT_S)
    disk = StuckDisk("fdatasync")
    disk.may_go.clear()
    try:
        node = ClassicPair(tmp_path, {}).program("n1", **ASYNC).make_node(disk=disk)
        starting = asyncio.ensure_future(node.start())
        await asyncio.to_thread(disk.is_stuck.wait)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not node.is_released
    finally:
        disk.may_go.set()


async def test_a_start_that_is_given_up_closes_the_log_that_it_was_opening(tmp_path: Path) -> None:
    disk = StuckDisk("fdatasync")
    disk.may_go.clear()
    try:
        node = ClassicPair(tmp_path, {}).program("n1", **ASYNC).make_node(disk=disk)
        starting = asyncio.ensure_future(node.start())
        await asyncio.to_thread(disk.is_stuck.wait)
        starting.cancel()
    finally:
        disk.may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert node.is_released
    assert (node.config.directory / "abort").exists(), "derived files were not checked"
    options = CommitLogOptions(node.settings.file_size)
    open_commit_log(node.config.directory, OsDisk(), options).close()


class FailingDisk(OsDisk):
    """Syncs of files with this in their path fail."""

    part = "nothing"

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        handle = super().open(path, create=create, write=write)
        self._paths[handle] = path
        return handle

    def fdatasync(self, handle: int) -> None:
        if self.part in str(self._paths[handle]):
            raise OSError(errno.EIO, "no such sector")
        super().fdatasync(handle)


async def test_a_stop_whose_last_sync_fails_ends_as_any_failed_sync_does(tmp_path: Path) -> None:
    disk, fatal = FailingDisk(), list[Exception]()
    async with on_disk(tmp_path, disk, fatal) as pair:
        program = pair.programs["n1"]
        node = pair.node("n1")
        await until(lambda: node.log.flushed_offset == node.log.end_offset)
        disk.part = "checkpoint"
        await program.stop()
        await node.stop()
        assert node.is_released
        (error,) = fatal
        assert isinstance(error, BrokerError) and error.status is Status.LOG_FAILED


async def test_a_role_that_cannot_be_written_at_the_start_has_a_number(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.part = "role.json"
    node = ClassicPair(tmp_path, {}).program("n1", **ASYNC).make_node(disk=disk)
    with pytest.raises(BrokerError, match=r"cannot write the role file.*no such sector") as caught:
        await node.start()
    assert caught.value.status is Status.LOG_FAILED and node.is_released


@pytest.mark.process
def test_a_process_that_cannot_begin_says_why_by_a_number(tmp_path: Path) -> None:
    """Not by where in the program that was found."""
    for begin in (0, 2 << 16):  # a file between them is gone
        path = tmp_path / "n1" / "commitlog" / f"{begin:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1 << 16))
    program = {
        "factory": "broker_adapter.server.program:broker",
        "settings": {
            "store": "classic",
            "remoting": {"listen": "127.0.0.1:0"},
            "classic": {"file_size": 1 << 16, "ha_listen": "127.0.0.1:0"},
        },
    }
    config = {
        "directory": str(tmp_path / "n1"),
        "node_id": "n1",
        "cluster_id": "c",
        "members": {"n1": "127.0.0.1:1"},
        "program": program,
    }
    (tmp_path / "n1.toml").write_text(toml_of(config))
    done = subprocess.run(
        [sys.executable, "-m", "dledger.node", "--config", str(tmp_path / "n1.toml")],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_FAILED
    told = done.stdout + done.stderr
    assert "cannot start" in told and "810 STORE_UNREADABLE" in told and "Traceback" not in told
