"""One store directory, of a genuine broker and of ours by turns: each goes on where the other has stopped."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.client import Admin, Message, MessageQueue, Producer, PullConsumer
from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.commit_log_files import CommitLogOptions
from broker_adapter.log.classic.node.feed import DispatchFeed
from broker_adapter.log.classic.node.records import RECORDS
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.log.classic.store_directory import StoreDirectory
from broker_adapter.store.dispatcher import Dispatcher
from broker_adapter.wire.index_layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexShape, key_hash
from dledger import StorageError
from dledger.infra.files.disk import OsDisk
from tests.broker_adapter.namesrv.helpers import name_server
from tests.process.cluster import free_ports

from . import genuine
from .classic_writer import QUEUES, TOPIC, body_of
from .genuine import eventually

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]
FILE_SIZE = 64 << 10
COUNT, MORE = 150, 50


def written(root: Path, first: int, count: int, end: str) -> dict[str, Any]:
    """By a process of ours. What its recovery has found."""
    arguments = [str(root), str(FILE_SIZE), str(first), str(count), end]
    done = subprocess.run(
        [sys.executable, "-m", "tests.interop.classic_writer", *arguments], check=False, capture_output=True
    )
    assert done.returncode == (-9 if end == "kill" else 0), done.stderr
    found = next(line for line in done.stdout.splitlines() if line.startswith(b"{"))
    recovery: dict[str, Any] = json.loads(found)
    return recovery


def with_topic(root: Path) -> None:
    """RocketMQ reads no queue of a topic that it does not know."""
    topic = {
        "topicName": TOPIC,
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "order": False,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    (root / "config").mkdir(parents=True, exist_ok=True)
    (root / "config" / "topics.json").write_text(
        json.dumps({"dataVersion": version, "topicConfigTable": {TOPIC: topic}})
    )


def log_bytes(root: Path, end: int) -> bytes:
    raw = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    return raw[:end]


def copy_of(root: Path, other: Path) -> Path:
    """Of the CommitLog and what belongs to it."""
    shutil.copytree(root / "commitlog", other / "commitlog")
    shutil.copy(root / "checkpoint", other)
    return other


def end_of(root: Path) -> int:
    """Where the log ends, by the reader that changes nothing."""
    scan = StoreDirectory(root).scan()
    for _ in scan.messages():
        pass
    return scan.end


async def served(at: str, count: int) -> None:
    """Every message, where it was put."""
    async with Admin(at) as admin:

        async def is_up() -> bool:
            with suppress(BrokerError):
                return bool(await admin.topic_stats(TOPIC))
            return False

        await eventually(is_up)
    async with PullConsumer("readers", at) as consumer:
        queues = {queue.queue_id: queue for queue in await consumer.queues(TOPIC)}

        async def are_all_there() -> bool:
            ends = [await consumer.max_offset(queue) for queue in queues.values()]
            return sum(ends) == count

        await eventually(are_all_there)
        for queue_id, queue in queues.items():
            for offset, number in enumerate(range(queue_id, count, QUEUES)):
                result = await consumer.pull(queue, offset, max_messages=1)
                (message,) = result.messages
                assert (message.queue_offset, message.body) == (offset, body_of(number))
        async with Admin(at) as admin:
            (found,) = await admin.query(TOPIC, f"k{count - 1}")
            assert found.body == body_of(count - 1)


async def sent(at: str, count: int) -> None:
    """To a broker that has nothing yet."""
    async with Producer("makers", at) as producer, PullConsumer("readers", at) as consumer:
        queues: dict[int, MessageQueue] = {}

        async def is_up() -> bool:
            with suppress(BrokerError):
                queues.update({queue.queue_id: queue for queue in await consumer.queues(TOPIC)})
            return len(queues) == QUEUES

        await eventually(is_up)
        for number in range(count):
            message = Message(TOPIC, body_of(number), tags=tag_of(number), keys=[f"k{number}", "all"])
            result = await producer.send(message, queue=queues[number % QUEUES])
            assert result.queue_offset == number // QUEUES


def tag_of(number: int) -> str:
    return f"tag{number % 7}"


class NoMetadata:
    """Nothing of this log is a command."""

    def apply(self, index: int, body: bytes) -> None: ...

    def save(self) -> bytes:
        return b""

    def load(self, data: bytes) -> None: ...

    def checkpoint(self) -> bytes:
        return self.save()

    def restore(self, data: bytes) -> None:
        self.load(data)

    def sync(self) -> None: ...

    def checkpointed(self) -> None: ...

    def close(self) -> None: ...


async def derived(store: Path, root: Path) -> None:
    """Our derived files of a log that somebody else has written."""
    log = open_commit_log(store, OsDisk(), CommitLogOptions(FILE_SIZE))
    machine = Dispatcher(root, NoMetadata(), durable_index=lambda: log.end_offset, log=RECORDS)
    failures: list[Exception] = []
    with ThreadPoolExecutor(1) as thread:
        feed = DispatchFeed(log, machine, thread, failures.append)
        await feed.start(lambda is_new: None)
        feed.advance(log.end_offset)
        await feed.wait(log.end_offset, 60_000)
        await feed.stop()
    log.close()
    assert not failures


def queue_digests(root: Path) -> dict[str, str]:
    """Of all files of ConsumeQueues with messages, each as large as RocketMQ makes it."""
    files = [path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): blake2b(path.read_bytes()).hexdigest() for path in files}


def index_items(root: Path) -> list[tuple[int, int, int]]:
    """(hash, physical offset, seconds) of all items of all IndexFiles, without those of tags: RocketMQ 5.5
    indexes them, too."""
    tags = {key_hash(f"{TOPIC}#T#{tag_of(number)}") for number in range(COUNT)}
    found = []
    for path in sorted((root / "index").iterdir()):
        with path.open("rb") as file:
            count = int.from_bytes(file.read(HEADER_SIZE)[-4:], "big")
            file.seek(HEADER_SIZE + IndexShape().slots * SLOT_SIZE + ITEM_SIZE)
            items = struct.iter_unpack(">iqii", file.read((count - 1) * ITEM_SIZE))
            found += [item[:3] for item in items if item[0] not in tags]
    return found


@pytest.mark.parametrize("end", ["close", "kill"])
async def test_a_genuine_broker_starts_on_what_ours_has_written(tmp_path: Path, end: str) -> None:
    genuine.require()
    root, (port, _) = tmp_path / "java/store", free_ports(2)
    written(root, 0, COUNT, end)
    with_topic(root)
    before = log_bytes(root, end_of(root))
    async with name_server(tmp_path / "names") as names:
        with genuine.broker(
            tmp_path / "java", names.address, port, mappedFileSizeCommitLog=FILE_SIZE
        ) as process:
            await served(names.address, COUNT)
            with pytest.raises(StorageError, match="another broker"):
                open_commit_log(root, OsDisk(), CommitLogOptions(FILE_SIZE))
            async with Producer("makers", names.address) as producer:
                for number in range(COUNT, COUNT + MORE):
                    await producer.send(Message(TOPIC, body_of(number)))
            process.terminate()
            process.wait(60)
        assert log_bytes(root, len(before)) == before
        log = open_commit_log(root, OsDisk(), CommitLogOptions(FILE_SIZE))
        assert log.recovery.was_clean and log.end_offset > len(before)
        assert not log.recovery.cut_bytes
        log.close()


@pytest.mark.parametrize("stop", ["terminate", "kill"])
async def test_ours_goes_on_with_what_a_genuine_broker_has_written(tmp_path: Path, stop: str) -> None:
    genuine.require()
    root, (port, _) = tmp_path / "java/store", free_ports(2)
    with_topic(root)
    settings = {"mappedFileSizeCommitLog": FILE_SIZE, "flushDiskType": "SYNC_FLUSH"}
    async with name_server(tmp_path / "names") as names:
        at = names.address
        with genuine.broker(tmp_path / "java", at, port, **settings) as process:
            await sent(at, COUNT)
            getattr(process, stop)()
            process.wait(60)
        end = end_of(root)
        before = log_bytes(root, end)
        if stop == "terminate":  # a broker that is killed may not have written all of them
            await derived(copy_of(root, tmp_path / "copy"), tmp_path / "derived")
            assert len(queue_digests(root)) == QUEUES
            assert queue_digests(tmp_path / "derived") == queue_digests(root)
            assert len(index_items(root)) == 3 * COUNT
            assert index_items(tmp_path / "derived") == index_items(root)
        recovery = written(root, COUNT, MORE, "keep" if stop == "terminate" else "kill")
        assert recovery["was_clean"] == (stop == "terminate")
        assert (recovery["begin"], recovery["end"], recovery["damage"]) == (0, end, "")
        after = end_of(root)
        ours = log_bytes(root, after)
        assert ours[:end] == before and after > end
        for _ in range(2):
            with genuine.broker(tmp_path / "java", at, port, **settings):
                await served(at, COUNT + MORE)
        assert log_bytes(root, after) == ours
