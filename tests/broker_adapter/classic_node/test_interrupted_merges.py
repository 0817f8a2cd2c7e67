"""Our broker is killed while it merges another broker's tables; then RocketMQ runs on the directory, changes
entries back or forward, and our broker starts again. The last change of each entry wins."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.tables import content_at
from broker_adapter.metadata.commands import (
    Command,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server import classic_tables
from broker_adapter.server.classic_tables import TableAdoption, TableWriter
from broker_adapter.server.log_host import BrokerParts
from broker_adapter.server.table_base import note_clean_stop
from broker_adapter.store.checkpoint import FILE_NAME as CHECKPOINT
from broker_adapter.store.consume_queues import Incarnation
from dledger.infra.files.disk import OsDisk

from .classic_pair import ClassicPair, classic_pair
from .test_adopted_tables import EndingDisk, _Ended, applied, write_now
from .test_incarnations import NEW, append_foreign, bodies, committed, left, master, rewrite
from .test_logged_merges import copy_running, replace_directory, write_nothing

#: ("topic" or "group", name) or ("offset", queue id of topic `t`): queues, retries or offset; None: absent.
Key = tuple[str, str | int]
KEYS: list[Key] = [("topic", "a"), ("topic", "b"), ("group", "h"), ("offset", 0), ("offset", 1)]


class KillingDisk(EndingDisk):
    """Only kills are tried, no power failures: nothing has to be durable."""

    def tick(self) -> None:
        self._count()

    def fdatasync(self, handle: int) -> None: ...

    def sync_directory(self, path: Path) -> None:
        self._count()

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)


class Directory:
    """A store directory with its log, its newest checkpoint, and the value that each entry has to have."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        #: Where the log has the first message of a recreated topic `t`.
        self.restart_at: int | None = None
        self.log: list[bytes] = []
        self.checkpoint = b""
        self.expected: dict[Key, int | None] = dict.fromkeys(KEYS)
        self._patch = monkeypatch
        self.metadata = MetadataState()
        self._disk = KillingDisk(1 << 40)

    # -- our broker

    def start(
        self,
        ticks: int = 1 << 40,
        *,
        incarnations: Sequence[Incarnation] = (),
        checkpoints: Sequence[str] = (),
        was_clean: bool = False,
        work: Callable[[], None] = lambda: None,
    ) -> None:
        """Raise _Ended at the tick at which the process ends. `checkpoints`: when they are made. `work`:
        of clients, once the merge is in the log."""
        self._disk = KillingDisk(ticks)
        self._patch.setattr(classic_tables, "OsDisk", lambda: self._disk)
        self.metadata, delivery = MetadataState(), DeliveryState()
        adoption = TableAdoption(self.folder, self.metadata, delivery)
        if self.checkpoint:
            self.metadata.load(self.checkpoint)
        adoption.begin(not self.checkpoint)
        for index, body in enumerate(self.log):
            if index == adoption.position and self.metadata.applied_index < index:
                adoption.restore()
            self._restart(index)
            self.metadata.apply(index, body)
        self._restart(len(self.log))
        if "before the merge" in checkpoints:
            self.checkpoint = self.metadata.save()
        commands = adoption.finish(lambda *queue: 100, incarnations, was_clean=was_clean)
        if "after the merge" in checkpoints:
            self.checkpoint = self.metadata.save()
        for command in commands:
            self._append(command)
        if "after the log" in checkpoints:
            self.checkpoint = self.metadata.save()
        work()

    def _restart(self, index: int) -> None:
        """Checkpoints are made after the restart."""
        if index == self.restart_at and not self.checkpoint:
            self.metadata.drop_queue("t", 0)

    def write(self, incarnations: Sequence[Incarnation] = ()) -> None:
        """The tables."""
        parts = SimpleNamespace(metadata=self.metadata, delivery_state=DeliveryState())
        position = len(self.log)
        writer = TableWriter(
            self.folder, cast(BrokerParts, parts), applied, None, lambda: position, lambda: incarnations
        )
        write_now(writer)

    def set(self, key: Key, value: int | None) -> None:
        """As a client asks for it."""
        self._append(_command(key, value))
        self.expected[key] = value

    def check(self, *what: object) -> None:
        found: dict[Key, int | None] = dict.fromkeys(KEYS)
        for name, topic in self.metadata.topics.items():
            found["topic", name] = topic.read_queues
        for group in self.metadata.groups():
            found["group", group.name] = group.config.retry_max_times
            found |= {("offset", queue_id): at for (_, queue_id), at in group.offsets.items()}
        assert {key: found[key] for key in KEYS} == self.expected, what

    def _append(self, command: Command) -> None:
        self._disk.tick()
        self.log.append(encode(command))
        self.metadata.apply(len(self.log) - 1, self.log[-1])

    # -- RocketMQ

    def change(self, key: Key, value: int | None) -> None:
        """RocketMQ starts, finds the entry in its tables, and gives it this value."""
        kind, name = key
        file, table_name, entry_name = {
            "topic": ("topics.json", "topicConfigTable", str(name)),
            "group": ("subscriptionGroup.json", "subscriptionGroupTable", str(name)),
            "offset": ("consumerOffset.json", "offsetTable", "t@g"),
        }[kind]
        before = content_at(self.folder / file)
        assert before is not None
        whole = json.loads(before)
        table: dict[str, Any] = whole[table_name]
        if kind == "offset":
            table, entry_name = table.setdefault(entry_name, {}), str(name)
        found = table.get(entry_name)
        if isinstance(found, dict):
            found = found[{"topic": "readQueueNums", "group": "retryMaxTimes"}[kind]]
        if found != value:
            self.expected[key] = value
            table.pop(entry_name, None)
            if value is not None:
                table[entry_name] = _entry(key, value)
        (self.folder / f"{file}.bak").write_bytes(before)
        (self.folder / file).write_text(json.dumps(whole, indent=1))


def _command(key: Key, value: int | None) -> Command:
    kind, name = key
    if kind == "topic":
        return DeleteTopic(str(name)) if value is None else PutTopic(TopicConfig(str(name), value, value))
    if kind == "group":
        return DeleteGroup(str(name)) if value is None else PutGroup(_group(str(name), value))
    if value is None:
        return DropOffsets("g", (("t", int(name)),))
    return ResetOffsets("g", (QueueOffset("t", int(name), value),), False)


def _group(name: str, value: int) -> GroupConfig:
    return GroupConfig(name, retry_max_times=value)


def _entry(key: Key, value: int) -> Any:
    kind, name = key
    if kind == "topic":
        return {"topicName": name, "perm": 6, "readQueueNums": value, "writeQueueNums": value}
    if kind == "group":
        return {"groupName": name, "retryQueueNums": 1, "retryMaxTimes": value}
    return value


def directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """Topics and offsets that our broker has written."""
    world = Directory(folder, monkeypatch)

    def make() -> None:
        world._append(PutTopic(TopicConfig("t", 2, 2)))
        world._append(PutGroup(GroupConfig("g")))
        for key, value in zip(KEYS, (1, 2, 3, 5, 6), strict=True):
            world.set(key, value)

    world.start(work=make)
    world.write()
    return world


MERGED: dict[Key, int | None] = dict(zip(KEYS, (None, 4, None, 2, None), strict=True))
CHECKPOINTS = ("before the merge", "after the merge", "after the log")
#: What RocketMQ makes of the entries after our broker was killed.
LATER: dict[str, dict[Key, int | None]] = {
    "nothing": {},
    "as our broker wrote them first": dict(zip(KEYS, (1, 2, 3, 5, 6), strict=True)),
    "as RocketMQ wrote them first": MERGED,
    "as our broker wrote them last": dict(zip(KEYS, (7, None, 7, 7, 7), strict=True)),
    "other values": dict(zip(KEYS, (8, 8, 8, 8, 8), strict=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("later", list(LATER))
@pytest.mark.parametrize("checkpoint", [*CHECKPOINTS, "never"])
def test_the_last_change_of_an_entry_wins_wherever_a_merge_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str, later: str
) -> None:
    """Killed before each step of noting the merge, logging it, and writing the tables; clients change the
    entries once the log has the merge."""
    number, is_done = 0, False
    while not is_done:
        number += 1
        world = directory(tmp_path / f"{number}", monkeypatch)
        for key, value in MERGED.items():
            world.change(key, value)

        def work(world: Directory = world) -> None:
            for key, value in LATER["as our broker wrote them last"].items():
                if world.expected[key] != value:
                    world.set(key, value)

        try:
            world.start(number, checkpoints=[checkpoint], work=work)
            world.write()
            is_done = True
        except _Ended:
            pass
        for key, value in LATER[later].items():
            world.change(key, value)
        world.start()
        world.check(number, "merged")
        world.write()
        world.start()
        world.check(number, "written")
        world.checkpoint = b""
        world.start()
        world.check(number, "rebuilt")
    assert number > 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_the_last_change_of_an_entry_wins_over_any_number_of_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    lots = random.Random(seed)
    world = directory(tmp_path / "config", monkeypatch)

    def work() -> None:
        for _ in range(lots.randint(0, 4)):
            key, value = lots.choice(KEYS), lots.choice([None, 1, 2, 3, 4])
            if world.expected[key] != value:
                world.set(key, value)
            if lots.random() < 0.3:
                world.write()

    for life in range(12):
        for _ in range(lots.choice([0, 0, 1, 3])):
            world.change(lots.choice(KEYS), lots.choice([None, 1, 2, 3, 4]))
        moments = [
            one for one in ("before the merge", "after the merge", "after the log") if lots.random() < 0.2
        ]
        if lots.random() < 0.2:
            world.checkpoint = b""
        with suppress(_Ended):
            world.start(lots.choice([1 << 40, lots.randint(1, 60)]), checkpoints=moments, work=work)
            world.check(life)
            if lots.random() < 0.7:
                world.write()
    world.start()
    world.check("last")


def test_a_merge_that_cannot_be_noted_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = directory(tmp_path / "config", monkeypatch)
    world.change(("topic", "a"), None)

    class FullDisk(KillingDisk):
        def pwritev(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
            raise OSError(28, "No space left on device")

    metadata = MetadataState()
    monkeypatch.setattr(classic_tables, "OsDisk", lambda: FullDisk(1 << 40))
    adoption = TableAdoption(world.folder, metadata, DeliveryState())
    adoption.begin(True)
    before = dict(metadata.topics)
    with pytest.raises(BrokerError) as raised:
        adoption.finish(lambda *queue: 100)
    assert raised.value.status is Status.LOG_FAILED and dict(metadata.topics) == before
    world.start()
    world.check()


def test_a_merge_that_is_not_written_is_not_repeated_over_later_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables can no longer be written; the broker is killed, and RocketMQ does not run."""
    world = directory(tmp_path / "config", monkeypatch)
    world.change(("offset", 0), 2)
    world.start(work=lambda: world.set(("offset", 0), 4))
    ends = set()
    for _ in range(3):
        world.start()
        world.check()
        ends.add(len(world.log))
    assert len(ends) == 1, "nothing is left to be logged"


async def killed_in_merge(pair: ClassicPair, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, int | None]:
    """Start our broker on the directory, and leave it as a kill does when the log has the merge and the
    tables are not written. Return whether there is a topic `t`, and the group's offset in it."""
    root, copy = pair.folder / "n1", pair.folder / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(TableWriter, "write", write_nothing)
        program = await master(pair)
        seen = "t" in program.metadata.topics, committed(program)
        copy_running(root, copy)
        await pair.stop("n1")
    replace_directory(root, copy)
    return seen


async def test_a_topic_that_rocketmq_recreates_after_its_deletion_was_merged_has_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        entry = json.loads((root / "config/topics.json").read_bytes())["topicConfigTable"]["t"]
        rewrite(root, "topics.json", lambda table: table["topicConfigTable"].pop("t"))
        rewrite(root, "consumerOffset.json", lambda table: table["offsetTable"].pop("t@g"))
        assert await killed_in_merge(pair, monkeypatch) == (False, None)
        rewrite(root, "topics.json", lambda table: table["topicConfigTable"].update({"t": entry}))
        append_foreign(root, 0, NEW)
        program = await master(pair)
        assert bodies(program) == NEW and "t" in program.metadata.topics
        await pair.stop("n1")
        (root / CHECKPOINT).unlink()
        program = await master(pair)
        assert bodies(program) == NEW and "t" in program.metadata.topics


async def test_an_offset_that_rocketmq_moves_back_to_the_base_after_its_merge_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        rewrite(root, "consumerOffset.json", lambda table: table["offsetTable"].update({"t@g": {"0": 2}}))
        assert await killed_in_merge(pair, monkeypatch) == (True, 2)
        rewrite(root, "consumerOffset.json", lambda table: table["offsetTable"].update({"t@g": {"0": 5}}))
        assert committed(await master(pair)) == 5


async def test_an_equal_offset_in_a_recreated_topic_is_taken_though_our_first_start_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other broker stopped cleanly. `abort` is from our broker, which was killed before the merge."""
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        append_foreign(root, 0, [*NEW, "new 3", "new 4", "new 5", "new 6"])
        table = root / "config/consumerOffset.json"
        table.write_text(json.dumps(json.loads(table.read_bytes()), indent=1))  # as the other one writes it
        with monkeypatch.context() as patch:

            def killed(adoption: TableAdoption, is_new: bool) -> None:
                raise _Ended

            patch.setattr(TableAdoption, "begin", killed)
            with pytest.raises(_Ended):
                await pair.start("n1")
        assert (root / "abort").exists()
        assert committed(await master(pair)) == 5


async def test_an_equal_offset_is_not_taken_after_the_other_broker_was_killed_later(tmp_path: Path) -> None:
    """Its tables are no longer those of the clean stop."""
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        await master(pair)  # it notes that the tables are from a clean stop
        await pair.stop("n1")
        append_foreign(root, 0, [*NEW, "new 3", "new 4", "new 5", "new 6"])
        table = root / "config/consumerOffset.json"
        table.write_text(json.dumps(json.loads(table.read_bytes()), indent=1))
        (root / "abort").touch()
        assert committed(await master(pair)) is None


def test_a_restart_of_a_queue_that_a_checkpoint_has_before_the_merge_counts_for_the_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset in the table is beyond the new messages, so it is one of the deleted topic."""
    world = directory(tmp_path / "config", monkeypatch)
    world.change(("offset", 0), 101)
    world.metadata.drop_queue("t", 0)
    world.checkpoint = world.metadata.save()
    world.start(incarnations=[Incarnation("t", 0, 4711)])
    assert world.metadata.first_offset("g", "t", 0) == 0


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [*CHECKPOINTS, "never"])
def test_an_equal_offset_in_a_recreated_topic_is_taken_wherever_the_merge_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str
) -> None:
    """The other broker stopped cleanly; from the first kill on, `abort` hides that."""
    number, is_done, incarnations = 0, False, [Incarnation("t", 0, 4711)]
    while not is_done:
        number += 1
        world = directory(tmp_path / f"{number}/config", monkeypatch)
        world.restart_at = len(world.log)
        world.change(("offset", 0), 5)
        note_clean_stop(OsDisk(), world.folder.parent)
        try:
            world.start(
                number,
                incarnations=incarnations,
                checkpoints=[checkpoint],
                was_clean=True,
                work=lambda world=world: world.set(("offset", 0), 4),
            )
            world.write(incarnations)
            is_done = True
        except _Ended:
            (world.folder.parent / "abort").touch()
        for _ in range(2):
            world.start(incarnations=incarnations)
            world.check(number)
        world.write(incarnations)
        world.start(incarnations=incarnations)
        world.check(number, "written")
    assert number > 15
