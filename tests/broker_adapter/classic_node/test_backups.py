"""Backups of a classic store that is written meanwhile, and stores restored from them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.commit_log_files import CommitLogOptions
from broker_adapter.log.classic.layout import StorePaths
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.log.classic.store_checkpoint import load_checkpoint, save_checkpoint
from broker_adapter.server.classic_backup import back_up, restore
from broker_adapter.server.table_base import NO_TABLES, TableBase, read_base, write_base
from dledger import Code, StorageError
from dledger.infra.files.disk import Buffer, OsDisk
from dledger.store.offline.manifest import MANIFEST, load_manifest, save_manifest
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.classic_node.test_quiet_queues import COUNT, retire_messages
from tests.broker_adapter.classic_node.test_role_changes import ASYNC
from tests.broker_adapter.cluster import bodies, messages
from tests.broker_adapter.sending import send_to
from tests.node.local import until

FILE_SIZE = 1 << 16


async def restored(pair: ClassicPair, backup: Path) -> None:
    """n1 is killed and lost, and then made of the backup."""
    await pair.stop("n1")
    shutil.rmtree(pair.folder / "n1")
    restore(backup, pair.folder / "n1")
    await pair.start("n1", **ASYNC)


async def test_all_that_was_acknowledged_is_in_a_backup_made_while_clients_write(tmp_path: Path) -> None:
    async with classic_pair(tmp_path, file_size=FILE_SIZE) as pair:
        await pair.start("n1", **ASYNC)
        master = await pair.writable("n1")
        await master.broker.put_topic(TopicConfig("t", 2, 2))
        await master.broker.put_group(GroupConfig("g", retry_max_times=7))
        sent: dict[int, list[bytes]] = {0: [], 1: []}
        is_done = asyncio.Event()

        async def write(queue_id: int) -> None:
            number = 0
            while not is_done.is_set():
                body = f"{queue_id}-{number}".ljust(300, ".")
                await send_to(master, "t", messages(body, KEYS=f"k{number}"), queue_id=queue_id)
                sent[queue_id].append(body.encode())
                number += 1

        writers = [asyncio.create_task(write(queue_id)) for queue_id in sent]
        for number in range(1, 4):
            goal = 60 * number
            await until(lambda goal=goal: min(map(len, sent.values())) >= goal)  # type: ignore[misc]
            known = {queue_id: len(each) for queue_id, each in sent.items()}
            await master.broker.commit_offsets("g", [QueueOffset("t", 0, known[0])])
            backup = tmp_path / f"backup{number}"
            await asyncio.to_thread(back_up, tmp_path / "n1", backup)
        is_done.set()
        await asyncio.gather(*writers)
        await restored(pair, backup)
        again = await pair.writable("n1")
        await again.files.wait_applied()
        ends: dict[int, list[bytes]] = {}
        for queue_id, each in sent.items():
            found = ends[queue_id] = await bodies(again, "t", queue_id)
            assert found == each[: len(found)] and len(found) >= known[queue_id]
        assert await again.broker.offset("g", "t", 0) == known[0]
        assert {group.config.name: group.config.retry_max_times for group in again.metadata.groups()}[
            "g"
        ] == 7
        await until(lambda: again.dispatcher.figures().index_pending == 0)
        assert len(await again.broker.query("t", "k7", begin_ms=0, end_ms=1 << 60, max_messages=9)) == 2
        result = await send_to(again, "t", messages("new"), queue_id=0)
        assert result.queue_offset == len(ends[0])


async def test_a_queue_whose_messages_were_purged_goes_on_where_it_was(tmp_path: Path) -> None:
    async with classic_pair(tmp_path, file_size=FILE_SIZE) as pair:
        await retire_messages(pair)
        back_up(tmp_path / "n1", tmp_path / "backup")
        await restored(pair, tmp_path / "backup")
        master = await pair.writable("n1")
        assert master.files.bounds("quiet", 0) == (COUNT, COUNT)
        assert await master.broker.offset("g", "quiet", 0) == COUNT
        assert (await send_to(master, "quiet", messages("new"), queue_id=0)).queue_offset == COUNT


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of a stopped broker, with some files of the log."""

    async def fill() -> None:
        async with classic_pair(tmp_path, file_size=FILE_SIZE) as pair:
            await pair.start("n1", **ASYNC)
            master = await pair.writable("n1")
            await master.broker.put_topic(TopicConfig("t", 1, 1))
            for number in range(12):
                await send_to(master, "t", messages(f"{number}" * 6000), queue_id=0)

    asyncio.run(fill())
    return tmp_path / "n1"


def log_end(store: Path) -> int:
    log = open_commit_log(store, OsDisk(), CommitLogOptions(FILE_SIZE))
    log.close(keep_abort=True)
    return log.recovery.end


class LateWrites(OsDisk):
    """The first copy of the log reads a record while it is written: its second half is not there yet."""

    def __init__(self, at: int) -> None:
        self._torn: int | None = at

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = super().pread(handle, size, offset)
        name = Path(f"/proc/self/fd/{handle}").readlink()
        begin = int(name.name) if name.name.isdecimal() and name.parent.parent.name == "n1" else -1
        if self._torn is not None and 0 <= self._torn - begin - offset < len(data) and begin >= 0:
            cut = self._torn - begin - offset
            data, self._torn = data[:cut] + bytes(len(data) - cut - 1) + b"\1", None
        return data


def test_a_record_that_is_written_during_the_copy_is_read_again(store: Path, tmp_path: Path) -> None:
    end = log_end(store)
    made = back_up(store, tmp_path / "backup", disk=LateWrites(end - 3000))
    assert made.end == end
    restore(tmp_path / "backup", tmp_path / "new")
    assert StorePaths(tmp_path / "new").abort.exists(), "the end is not that of a clean stop"
    assert log_end(tmp_path / "new") == end


def test_a_restored_checkpoint_is_that_of_the_copied_log(store: Path, tmp_path: Path) -> None:
    paths, disk = StorePaths(store), OsDisk()
    earlier = load_checkpoint(disk, paths.checkpoint)
    earlier.flushed_offset = 0
    save_checkpoint(disk, paths.checkpoint, earlier)
    made = back_up(store, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new")
    assert load_checkpoint(disk, StorePaths(tmp_path / "new").checkpoint).flushed_offset == made.end > 0


def test_a_log_that_ends_before_what_was_durable_is_refused(store: Path, tmp_path: Path) -> None:
    max((store / "commitlog").iterdir()).unlink()
    with pytest.raises(BrokerError, match="it was durable up to") as caught:
        back_up(store, tmp_path / "backup")
    assert caught.value.status is Status.STORE_DAMAGED and not list((tmp_path / "backup").iterdir())


@pytest.mark.parametrize("change", ["a merge", "a merge before the first write"])
def test_tables_are_not_backed_up_before_they_are_merged(change: str, store: Path, tmp_path: Path) -> None:
    disk, config = OsDisk(), store / "config"
    base = read_base(disk, config)
    assert base is not None
    other = base._replace(merges=[base.written]) if change == "a merge" else TableBase(-1, NO_TABLES)
    write_base(disk, config, other)
    with pytest.raises(BrokerError, match="are being merged") as caught:
        back_up(store, tmp_path / "backup")
    assert caught.value.status is Status.STORE_UNSUPPORTED and not list((tmp_path / "backup").iterdir())


@pytest.mark.parametrize("name", ["../outside", "commitlog/../../outside", "/outside"])
def test_a_manifest_names_no_file_outside_the_backup(store: Path, tmp_path: Path, name: str) -> None:
    backup, disk = tmp_path / "backup", OsDisk()
    back_up(store, backup)
    fields = load_manifest(disk, backup, "classic")
    fields["files"].append([name, 0, 0, 0])
    save_manifest(disk, backup, "classic", fields)
    with pytest.raises(StorageError) as caught:
        restore(backup, tmp_path / "new")
    assert caught.value.code is Code.STATE_DAMAGED and not (tmp_path / "new").exists()


def test_damaged_records_are_refused_and_nothing_remains(store: Path, tmp_path: Path) -> None:
    file = min((store / "commitlog").iterdir())
    content = bytearray(file.read_bytes())
    content[30_000] ^= 1
    file.write_bytes(content)
    with pytest.raises(BrokerError, match="no backup was made") as caught:
        back_up(store, tmp_path / "backup")
    assert caught.value.status is Status.STORE_DAMAGED
    assert not list((tmp_path / "backup").iterdir())
    with pytest.raises(StorageError) as incomplete:
        restore(tmp_path / "backup", tmp_path / "new")
    assert incomplete.value.code is Code.BACKUP_INCOMPLETE


class FullDisk(OsDisk):
    """Has space for so many writes."""

    def __init__(self, writes: int) -> None:
        self._writes = writes

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if not self._writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._writes -= 1
        return super().pwritev(handle, buffers, offset)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def test_a_full_disk_leaves_neither_a_backup_nor_a_store(store: Path, tmp_path: Path) -> None:
    backup, target = tmp_path / "backup", tmp_path / "new"
    for writes in range(40):
        try:
            back_up(store, backup, disk=FullDisk(writes))
        except StorageError as error:
            assert error.code is Code.BACKUP_DISK_FULL and "free space" in error.message
            assert not files_in(backup)
        else:
            break
    assert writes > 3
    for writes in range(40):
        try:
            restore(backup, target, disk=FullDisk(writes))
        except StorageError as error:
            assert error.code is Code.BACKUP_DISK_FULL
            assert not target.exists() and not files_in(tmp_path / ".new.restoring")
        else:
            break
    assert writes > 3 and log_end(target) == log_end(store)


class Killed(BaseException):
    pass


class KilledAt(OsDisk):
    """The process ends at the nth sync."""

    def __init__(self, syncs: int) -> None:
        self._syncs = syncs

    def fdatasync(self, handle: int) -> None:
        if not self._syncs:
            raise Killed
        self._syncs -= 1
        super().fdatasync(handle)


def test_an_interrupted_backup_is_none_and_a_repeated_one_starts_over(store: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    for syncs in range(40):
        try:
            back_up(store, backup, disk=KilledAt(syncs))
        except Killed:
            with pytest.raises(StorageError) as caught:
                restore(backup, tmp_path / "new")
            assert caught.value.code is Code.BACKUP_INCOMPLETE and not (tmp_path / "new").exists()
        else:
            break
    assert syncs > 3
    with pytest.raises(StorageError) as again:
        back_up(store, backup)
    assert again.value.code is Code.ALREADY_INITIALIZED
    restore(backup, tmp_path / "new")


def test_an_interrupted_restore_is_no_store_and_is_named(store: Path, tmp_path: Path) -> None:
    backup, target = tmp_path / "backup", tmp_path / "new"
    back_up(store, backup)
    for syncs in range(40):
        try:
            restore(backup, target, disk=KilledAt(syncs))
        except Killed:
            assert not target.exists()
            with pytest.raises(StorageError, match="interrupted restore: remove it") as caught:
                restore(backup, target)
            assert caught.value.code is Code.ALREADY_INITIALIZED
            shutil.rmtree(tmp_path / ".new.restoring")
        else:
            break
    assert syncs > 3 and log_end(target) == log_end(store)


def test_a_changed_byte_of_a_backup_is_found_and_nothing_is_created(store: Path, tmp_path: Path) -> None:
    backup, target = tmp_path / "backup", tmp_path / "new"
    back_up(store, backup)
    for path in files_in(backup):
        content = path.read_bytes()
        used = len(content.rstrip(b"\0"))
        for at in {0, used // 2, max(0, used - 1)}:
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(StorageError) as caught:
                restore(backup, target)
            expected = (Code.STATE_DAMAGED,) if path.name == MANIFEST else (Code.DATA_DAMAGED,)
            assert caught.value.code in expected and not target.exists()
        path.unlink()
        with pytest.raises(StorageError):
            restore(backup, target)
        assert not target.exists()
        path.write_bytes(content)
    restore(backup, target)


def test_files_of_others_are_never_replaced(store: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in files_in(store)}
    with pytest.raises(StorageError) as caught:
        back_up(store, store)
    assert caught.value.code is Code.ALREADY_INITIALIZED
    backup = tmp_path / "backup"
    back_up(store, backup)
    with pytest.raises(StorageError) as over:
        restore(backup, store)
    assert over.value.code is Code.ALREADY_INITIALIZED
    assert {path: path.read_bytes() for path in files_in(store)} == before


def test_a_directory_with_another_kind_of_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="dledger backup") as caught:
        back_up(tmp_path, tmp_path / "backup")
    assert caught.value.status is Status.STORE_UNREADABLE
    assert not StorePaths(tmp_path / "backup").commit_log.exists()
