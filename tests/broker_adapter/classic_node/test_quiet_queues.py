"""Queues whose messages retention has removed go on where they were, whatever becomes of derived files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit, encode_unit
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.classic_node.test_classic_node import bodies, messages
from tests.broker_adapter.classic_node.test_role_changes import ASYNC
from tests.broker_adapter.sending import send_to
from tests.node.local import until

COUNT = 3


def reshape(pair: ClassicPair) -> None:
    """An operator wants other files."""
    pair.more = {"units_per_file": 60}


def lose_checkpoint(pair: ClassicPair) -> None:
    """As where a broker of RocketMQ has run before this one."""
    (pair.folder / "n1/derived_checkpoint").unlink()


def prefill(pair: ClassicPair) -> None:
    """RocketMQ's file of a queue whose first message has a later offset; the next file is there already."""
    lose_checkpoint(pair)
    queue = pair.folder / "n1/consumequeue/quiet/0"
    (file,) = queue.iterdir()
    units = [ConsumeQueueUnit(0, 0x7FFFFFFF, 0)] * (COUNT - 1) + [ConsumeQueueUnit(700, 120, 0)]
    content = b"".join(map(encode_unit, units))
    file.write_bytes(content.ljust(file.stat().st_size, b"\0"))
    (queue / f"{1000:020d}").write_bytes(bytes(1000))


async def retire_messages(pair: ClassicPair) -> None:
    """Of `quiet`, which group `g` has consumed, and not of `busy`."""
    await pair.start("n1", **ASYNC)
    master = await pair.writable("n1")
    for topic in ("quiet", "busy"):
        await master.broker.put_topic(TopicConfig(topic, 1, 1))
    await master.broker.put_group(GroupConfig("g"))
    for number in range(COUNT):
        await send_to(master, "quiet", messages(f"{number}"), queue_id=0)
    await until(lambda: master.files.bounds("quiet", 0) == (0, COUNT))
    await master.broker.commit_offsets("g", [QueueOffset("quiet", 0, COUNT)])
    for _ in range(12):
        await send_to(master, "busy", messages("x" * 20_000), queue_id=0)
    node = pair.node("n1")
    await until(lambda: master.dispatcher.figures().checkpoint.end_pos == node.log.end_offset)
    node.log.purge_below(node.log.last_file_offset)
    await until(lambda: master.files.bounds("quiet", 0) == (COUNT, COUNT))
    await until(lambda: not master.dispatcher.queues.has_needless_files)


@pytest.mark.parametrize("change", [reshape, lose_checkpoint, prefill])
async def test_a_queue_without_messages_goes_on_where_it_was(
    tmp_path: Path, change: Callable[[ClassicPair], None]
) -> None:
    """Else its next messages get offsets that groups are behind: nobody would be given them."""
    async with classic_pair(tmp_path, file_size=1 << 16) as pair:
        await retire_messages(pair)
        for new in ("first", "second"):  # and so once more
            await pair.stop("n1")
            change(pair)
            await pair.start("n1", **ASYNC)
            master = await pair.writable("n1")
            least, end = master.files.bounds("quiet", 0)
            assert await master.broker.offset("g", "quiet", 0) == COUNT <= least
            if change is prefill:
                assert (least, end) == (COUNT, COUNT)
                return
            sent = await send_to(master, "quiet", messages(new), queue_id=0)
            assert sent.queue_offset == end == COUNT + (new == "second")
            await master.files.wait_applied()
            assert (await bodies(master, "quiet", 0))[-1] == new.encode()
            busy = master.files.bounds("busy", 0)
            assert busy[1] == 12 and 0 < busy[0] < 12


async def test_a_queue_goes_on_though_each_life_ends_before_its_first_checkpoint(tmp_path: Path) -> None:
    async with classic_pair(tmp_path, file_size=1 << 16) as pair:
        await retire_messages(pair)
        for _ in range(3):
            await pair.stop("n1")
            lose_checkpoint(pair)
            await pair.start("n1", **ASYNC)
        master = await pair.writable("n1")
        assert master.files.bounds("quiet", 0) == (COUNT, COUNT)


async def test_the_log_knows_better_than_files_that_are_left(tmp_path: Path) -> None:
    """A unit that was damaged names a message that is no more there, behind those that are."""
    async with classic_pair(tmp_path, file_size=1 << 16) as pair:
        await retire_messages(pair)
        master = pair.programs["n1"]
        kept = await bodies(master, "busy", 0)
        await pair.stop("n1")
        lose_checkpoint(pair)
        file = max((tmp_path / "n1/consumequeue/busy/0").iterdir())
        content = bytearray(file.read_bytes())
        content[40 * 20 : 41 * 20] = encode_unit(ConsumeQueueUnit(5, 120, 0))
        file.write_bytes(content)
        await pair.start("n1", **ASYNC)
        master = await pair.writable("n1")
        await master.files.wait_applied()
        assert master.files.bounds("busy", 0)[1] == 12
        assert await bodies(master, "busy", 0) == kept
        assert not master.dispatcher.figures().set_aside.number
