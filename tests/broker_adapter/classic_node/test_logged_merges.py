"""A merge of another broker's tables: slaves and restarts get the same state and messages as its master."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.server.classic_tables import TableWriter, tables_of
from broker_adapter.server.program import BrokerProgram
from broker_adapter.store.checkpoint import FILE_NAME as CHECKPOINT
from broker_adapter.wire.message import decode
from tests.broker_adapter.sending import send_to
from tests.node.local import until

from .classic_pair import ClassicPair, classic_pair
from .test_classic_node import messages
from .test_incarnations import append_foreign, bodies, left, master, rewrite

_CONFIG = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
_TEXTS = ["x0", "x1", "x2"]


def create_as_foreign(root: Path, topic: str, texts: list[str]) -> None:
    append_foreign(root, 0, texts, topic=topic)
    rewrite(root, "topics.json", lambda table: table["topicConfigTable"].update({topic: _CONFIG}))


_MAY_DISAPPEAR = re.compile(r"consumequeue|\.json\.\d+$")


def copy_running(root: Path, copy: Path) -> None:
    """Copy what a kill would leave now. Meanwhile a checkpoint may remove files of ConsumeQueues, and a
    writer of tables the file that it renames."""
    try:
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("*.tmp"))
    except shutil.Error as error:
        if any(not _MAY_DISAPPEAR.search(os.fspath(source)) for source, _, _ in error.args[0]):
            raise


async def write_nothing(self: TableWriter) -> None: ...


def replace_directory(pair_folder: Path, copy: Path) -> None:
    shutil.rmtree(pair_folder)
    shutil.copytree(copy, pair_folder)


async def test_a_slave_has_the_messages_of_a_topic_that_another_broker_created(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        create_as_foreign(tmp_path / "n1", "new", _TEXTS)
        await pair.start("n1", "n2")
        await pair.writable("n1")
        await pair.in_step()
        slave = pair.programs["n2"]
        await until(lambda: "new" in slave.metadata.topics)
        await slave.files.wait_applied()
        assert bodies(pair.programs["n1"], "new") == bodies(slave, "new") == _TEXTS
        await pair.stop("n1")
        await pair.node("n2").change_role(True, force=True)
        program = await pair.writable("n2")
        assert bodies(program, "new") == _TEXTS


@pytest.mark.parametrize("restarts_from", ["nothing", "a checkpoint before the merge", "what the kill left"])
async def test_a_kill_after_the_merge_was_logged_hides_no_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts_from: str
) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        shutil.copytree(root, tmp_path / "before")
        create_as_foreign(root, "new", _TEXTS)
        with monkeypatch.context() as patch:
            patch.setattr(TableWriter, "write", write_nothing)
            assert bodies(await master(pair), "new") == _TEXTS
            copy_running(root, tmp_path / "killed")
            await pair.stop("n1")
        replace_directory(root, tmp_path / "killed")
        if restarts_from != "what the kill left":
            (root / CHECKPOINT).unlink(missing_ok=True)
        if restarts_from == "a checkpoint before the merge":
            shutil.copy(tmp_path / "before" / CHECKPOINT, root / CHECKPOINT)
            replace_directory(root / "consumequeue", tmp_path / "before/consumequeue")
            shutil.rmtree(root / "index", ignore_errors=True)  # no message had keys before
        assert bodies(await master(pair), "new") == _TEXTS


def contents(program: BrokerProgram) -> tuple[Any, dict[str, list[str]]]:
    """Topics, groups, offsets and the readable messages by queue."""
    found = {}
    for queue in program.dispatcher.queues.all():
        units = queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
        records = [program.host.records.record_at(unit.physical_offset) for unit in units]
        if records:
            found[f"{queue.topic}-{queue.queue_id}"] = [decode(one).body.decode() for one in records]
    return tables_of(program.metadata, program.delivery_state), found


def change_as_foreign(root: Path, lots: random.Random, ends: dict[str, int]) -> None:
    """What a broker of RocketMQ may do while the directory is its own. `ends`: next offsets by topic."""
    for number in range(lots.randint(3, 8)):
        topic = lots.choice(["t0", "t1", "t2", "t3"])
        texts = [f"foreign {number}.{at}" for at in range(lots.randint(1, 3))]
        action = lots.choice(["send", "delete", "recreate", "create"])
        if action in ("delete", "recreate") and topic in ends:
            del ends[topic]
            rewrite(root, "topics.json", lambda table, topic=topic: table["topicConfigTable"].pop(topic))
            rewrite(
                root,
                "consumerOffset.json",
                lambda table, topic=topic: table["offsetTable"].pop(f"{topic}@g", None),
            )
        if action == "delete" or (action == "send" and topic not in ends):
            continue
        rewrite(
            root,
            "topics.json",
            lambda table, topic=topic: table["topicConfigTable"].setdefault(topic, _CONFIG),
        )
        append_foreign(root, ends.get(topic, 0), texts, topic=topic)
        ends[topic] = ends.get(topic, 0) + len(texts)
        offset = lots.randint(0, ends[topic])
        rewrite(
            root,
            "consumerOffset.json",
            lambda table, topic=topic, offset=offset: table["offsetTable"].update(
                {f"{topic}@g": {"0": offset}}
            ),
        )


async def fill(pair: ClassicPair, lots: random.Random) -> dict[str, int]:
    program = await master(pair)
    await program.broker.put_group(GroupConfig("g"))
    ends = {}
    for topic in lots.sample(["t0", "t1", "t2", "t3"], 3):
        await program.broker.put_topic(TopicConfig(topic, 1, 1))
        ends[topic] = lots.randint(1, 4)
        await send_to(program, topic, messages(*(f"{topic} {at}" for at in range(ends[topic]))), queue_id=0)
        offset = lots.randint(0, ends[topic])
        await program.broker.commit_offsets("g", [QueueOffset(topic, 0, offset)])
    await program.files.wait_applied()
    await pair.stop("n1")
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_any_merge_leaves_slave_and_restarts_equal_to_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    lots = random.Random(seed)
    async with classic_pair(tmp_path) as pair:
        ends = await fill(pair, lots)
        root = tmp_path / "n1"
        change_as_foreign(root, lots, ends)
        with monkeypatch.context() as patch:
            patch.setattr(TableWriter, "write", write_nothing)
            await pair.start("n1", "n2")
            program = await pair.writable("n1")
            await program.files.wait_applied()
            await pair.in_step()
            expected = contents(program)
            assert set(expected[0].topics) == set(ends)
            await until(lambda: contents(pair.programs["n2"]) == expected)
            copy_running(root, tmp_path / "killed")
            await pair.stop()
        for has_checkpoint in (True, False):
            replace_directory(root, tmp_path / "killed")
            if not has_checkpoint:
                (root / CHECKPOINT).unlink(missing_ok=True)
            assert contents(await master(pair)) == expected
            await pair.stop("n1")
