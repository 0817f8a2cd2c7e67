"""Delayed messages and transactions of a broker with a classic log, in RocketMQ's own queues."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery_state.handles import half_handle, parse_half
from broker_adapter.errors import BrokerError, Busy, IllegalMessage, ReadFailed, Status, error_for
from broker_adapter.put.committer import PutRequest
from broker_adapter.scheduled import transactions
from broker_adapter.scheduled.deferring import OrphanedHalf, Resolution
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.properties import split_properties
from broker_adapter.wire.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from broker_adapter.wire.topic_names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC
from tests.broker_adapter.sending import send_to
from tests.node.local import until

from .classic_pair import ClassicPair, classic_pair

OFTEN = {"check_first_ms": 50, "check_again_ms": 50, "max_checks": 1_000}
ALONE = {"broker_role": "ASYNC_MASTER", "waits_for_slaves": False}


def outgoing(text: str, **properties: str) -> OutgoingMessage:
    return OutgoingMessage(text.encode(), properties)


def read(program: BrokerProgram, topic: str, queue_id: int = 0) -> list[MessageRecord]:
    """All messages of a queue, whoever it belongs to."""
    least, end = program.files.bounds(topic, queue_id)
    units = program.files.units(topic, queue_id, least, end - least)
    return [decode(program.host.records.record_at(unit.physical_offset)) for unit in units]


def bodies(program: BrokerProgram, topic: str = "t") -> list[str]:
    return sorted(
        message.body.decode()
        for queue_id in range(program.metadata.topics[topic].read_queues)
        for message in read(program, topic, queue_id)
    )


async def delayed(program: BrokerProgram, text: str, level: int, **properties: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    await program.delivery.send_delayed(
        "t", outgoing(text, **properties), message_id=text, deliver_at_ms=now_ms + 1_000, level=level
    )


async def half(program: BrokerProgram, text: str, check_after_ms: int = 0) -> str:
    found = await program.delivery.send_half(
        "t", outgoing(text, TAGS="a"), message_id=text, client_id="c", check_after_ms=check_after_ms
    )
    return found.transaction_id


async def started(pair: ClassicPair, **more: Any) -> BrokerProgram:
    await pair.start("n1", **ALONE, **more)
    program = await pair.writable("n1")
    await program.broker.put_topic(TopicConfig("t", 2, 2))
    return program


async def test_a_delayed_message_waits_in_the_queue_of_its_level(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        await delayed(program, "soon", 1, TAGS="a")
        await delayed(program, "late", 18)
        await delayed(program, "soon", 1, TAGS="a")
        await program.files.wait_applied()
        (late,) = read(program, SCHEDULE_TOPIC, 17)
        properties = split_properties(late.properties)
        assert properties["REAL_TOPIC"] == "t" and properties["REAL_QID"] == str(late.queue_id % 2)
        assert properties["DELAY"] == "18" and properties["UNIQ_KEY"] == "late"
        (unit,) = program.files.units(SCHEDULE_TOPIC, 17, 0, 1)
        assert unit.tag_code == late.store_timestamp + 7_200_000
        await until(lambda: bodies(program) == ["soon"])
        (soon,) = [one for queue_id in (0, 1) for one in read(program, "t", queue_id)]
        assert split_properties(soon.properties) == {"TAGS": "a", "UNIQ_KEY": "soon"}
        (first,) = read(program, SCHEDULE_TOPIC, 0)
        assert soon.store_timestamp >= first.store_timestamp + 1_000
        assert program.delivery_state.system_offsets() == {(SCHEDULE_TOPIC, 0): 1}
        await pair.stop()
        table = json.loads((tmp_path / "n1/config/delayOffset.json").read_text())
        assert table["offsetTable"] == {"1": 1}


@pytest.mark.slow
async def test_what_waits_outlives_a_restart_and_comes_once(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        for number in range(250):
            await delayed(program, str(number), 1 + number % 2)
        await pair.stop()
        program = await started(pair)
        await until(lambda: len(bodies(program)) == 250)
        await pair.stop()
        program = await started(pair)
        await delayed(program, "last", 1)
        await until(lambda: "last" in bodies(program))
        assert len(bodies(program)) == 251, "none of them came twice"


async def test_a_slave_has_the_offsets_of_levels_with_the_log(tmp_path: Path) -> None:
    async with classic_pair(tmp_path, "n1", "n2") as pair:
        program = await pair.writable("n1")
        await program.broker.put_topic(TopicConfig("t", 2, 2))
        await delayed(program, "soon", 1)
        await delayed(program, "later", 2)
        await until(lambda: bodies(program) == ["soon"])
        await pair.in_step()
        await pair.stop("n1")
        slave = pair.node("n2")
        await slave.change_role(True, force=True)
        program = await pair.writable("n2")
        await until(lambda: bodies(program) == ["later", "soon"])


async def test_a_message_of_a_deleted_topic_is_dropped(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        await delayed(program, "gone", 1)
        await program.broker.delete_topic("t")
        await until(lambda: program.delivery_state.system_offset(SCHEDULE_TOPIC, 0) == 1)
        await program.broker.put_topic(TopicConfig("t", 2, 2))
        assert bodies(program) == []


async def test_those_beside_a_message_of_a_deleted_topic_come_once(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        await program.broker.put_topic(TopicConfig("u", 1, 1))
        await delayed(program, "first", 1)
        await program.delivery.send_delayed(
            "u", outgoing("gone"), message_id="gone", deliver_at_ms=time.time_ns() // 1_000_000, level=1
        )
        await delayed(program, "last", 1)
        await program.broker.delete_topic("u")
        await until(lambda: program.delivery_state.system_offset(SCHEDULE_TOPIC, 0) == 3)
        await program.files.wait_applied()
        assert bodies(program) == ["first", "last"]


async def test_a_half_goes_to_the_topic_that_has_its_name_when_it_is_committed(tmp_path: Path) -> None:
    """As in RocketMQ, whose broker may go on with the directory."""
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        transaction = await half(program, "half")
        await program.broker.delete_topic("t")
        await program.broker.put_topic(TopicConfig("t", 2, 2))
        await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["half"])


async def test_a_commit_stores_the_message_and_an_op_message(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        first, second = await half(program, "first"), await half(program, "second")
        assert await half(program, "first") == first, "a repeated send gets the same transaction"
        await program.delivery.end_transaction("t", first, Resolution.COMMIT)
        await program.delivery.end_transaction("t", second, Resolution.ROLLBACK)
        await program.delivery.end_transaction("t", first, Resolution.COMMIT)  # again: nothing more
        with pytest.raises(ReadFailed) as caught:
            await program.delivery.end_transaction("t", second, Resolution.COMMIT)
        assert caught.value.status is Status.TRANSACTION_UNKNOWN
        await program.files.wait_applied()
        halves, ops = read(program, HALF_TOPIC), read(program, OP_TOPIC)
        properties = split_properties(halves[0].properties)
        assert properties.pop("__HALF_SINCE").isdecimal()
        assert properties.pop("REAL_QID") in "01" and properties == {
            "TAGS": "a",
            "UNIQ_KEY": "first",
            "TRAN_MSG": "true",
            "PGROUP": "t",
            "__transactionId__": "first",
            "REAL_TOPIC": "t",
        }
        assert [one.sys_flag & TRANSACTION_MASK for one in halves] == [0, 0]
        assert [(one.body, split_properties(one.properties)["TAGS"]) for one in ops] == [
            (b"0,", "d"),
            (b"1,", "d"),
        ]
        (stored,) = [one for queue_id in (0, 1) for one in read(program, "t", queue_id)]
        assert stored.body == b"first" and stored.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        assert stored.prepared_transaction_offset == halves[0].physical_offset


async def test_two_ends_of_a_half_at_once_store_its_message_once(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        transaction = await half(program, "once")
        ends = [program.delivery.end_transaction("t", transaction, Resolution.COMMIT) for _ in range(8)]
        await asyncio.gather(*ends)
        await program.files.wait_applied()
        assert bodies(program) == ["once"] and len(read(program, OP_TOPIC)) == 1


async def test_an_end_is_remembered_as_long_as_a_half_before_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_REMEMBERED", 1)
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        _, *ended = [await half(program, text) for text in ("open", "a", "b", "c")]
        for _ in range(2):
            for transaction in ended:
                await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        await program.files.wait_applied()
        assert bodies(program) == ["a", "b", "c"]


async def test_a_check_is_no_further_away_than_the_longest_delay(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        with pytest.raises(IllegalMessage) as caught:
            await half(program, "late", check_after_ms=DeliverySettings().max_delay_ms + 1)
        assert caught.value.status is Status.DELAY_TOO_LONG
        await half(program, "in time", check_after_ms=DeliverySettings().max_delay_ms)
        await program.files.wait_applied()
        assert [one.body for one in read(program, HALF_TOPIC)] == [b"in time"]


async def test_a_transaction_is_ended_in_its_own_topic_only(tmp_path: Path) -> None:
    """Who may send to one topic could end transactions of others: places of halves are no secrets."""
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        await program.broker.put_topic(TopicConfig("u", 1, 1))
        transaction = await half(program, "mine")
        place = parse_half("t", transaction)
        assert place is not None
        with pytest.raises(ReadFailed) as caught:
            await program.delivery.end_transaction("u", half_handle("u", *place), Resolution.ROLLBACK)
        assert caught.value.status is Status.TRANSACTION_UNKNOWN
        await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["mine"])


async def test_an_end_that_failed_has_not_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        transaction = await half(program, "still there")

        def fail(request: PutRequest) -> None:
            request.done.set_exception(error_for(Status.TOO_MANY_PENDING_BYTES, "no place"))
            asyncio.get_running_loop().call_soon(request.release)

        with monkeypatch.context() as patched:
            patched.setattr(program.delivery._committer, "submit", fail)
            with pytest.raises(Busy):
                await program.delivery.end_transaction("t", transaction, Resolution.ROLLBACK)
        await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["still there"])


async def test_an_ended_transaction_stays_ended_over_a_restart(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        ended, rolled_back, opened = [await half(program, text) for text in ("a", "b", "c")]
        await program.delivery.end_transaction("t", ended, Resolution.COMMIT)
        await program.delivery.end_transaction("t", rolled_back, Resolution.ROLLBACK)
        await pair.stop()
        program = await started(pair)
        for transaction in (ended, rolled_back):
            with pytest.raises(ReadFailed):
                await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        await program.delivery.end_transaction("t", opened, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["a", "c"])


async def test_what_a_lost_tail_of_the_log_had_is_no_reason_to_pass_over_what_comes(tmp_path: Path) -> None:
    """RocketMQ writes its tables at other times than its log."""
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        await delayed(program, "before", 1)
        await until(lambda: bodies(program) == ["before"])
        await pair.stop()
        config = tmp_path / "n1/config"
        levels = json.loads((config / "delayOffset.json").read_text())
        levels["offsetTable"]["1"] = 9
        (config / "delayOffset.json").write_text(json.dumps(levels))
        offsets = json.loads((config / "consumerOffset.json").read_text())
        for topic in (HALF_TOPIC, OP_TOPIC):
            offsets["offsetTable"][f"{topic}@CID_RMQ_SYS_TRANS"] = {"0": 9}
        (config / "consumerOffset.json").write_text(json.dumps(offsets))
        asked: list[OrphanedHalf] = []
        program = await with_checks(pair, asked)
        ended, _ = await half(program, "ended"), await half(program, "orphan")
        await delayed(program, "behind", 1)
        await program.delivery.end_transaction("t", ended, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["before", "behind", "ended"])
        await until(lambda: b"orphan" in [decode(one.record).body for one in asked])
        assert program.delivery_state.system_offset(SCHEDULE_TOPIC, 0) == 2


async def with_checks(pair: ClassicPair, asked: list[OrphanedHalf], **delivery: int) -> BrokerProgram:
    """Halves are checked every 50 ms, and as good as never given up: a test may stand still for a second."""
    pair.more = {"delivery": {**OFTEN, **delivery}}
    program = await started(pair)
    program.delivery.on_orphan(asked.append)
    return program


async def test_a_producer_that_says_nothing_is_asked_and_its_answer_counts(tmp_path: Path) -> None:
    asked: list[OrphanedHalf] = []
    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked)
        transaction = await half(program, "open")
        await until(lambda: len(asked) >= 2)
        assert [one.checks for one in asked[:2]] == [1, 2]
        shown = decode(asked[1].record)
        assert (shown.topic, shown.body) == ("t", b"open")
        await program.files.wait_applied()
        found = read(program, HALF_TOPIC)[shown.queue_offset]
        assert found.physical_offset == shown.physical_offset, "it is asked about where it is now"
        assert split_properties(found.properties)["TRANSACTION_CHECK_TIMES"] == "2"
        # As the producer knew it first, and later from the question.
        await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["open"])
        count = len(asked)
        await until(lambda: program.delivery_state.system_offset(OP_TOPIC, 0) == 1)
        assert len(asked) == count and bodies(program) == ["open"]


@pytest.mark.parametrize("how", ["restart", "slave", "forgotten"])
async def test_a_checked_half_is_committed_by_its_first_transaction_id(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check moves the half. The producer may not know the new place when it ends its transaction."""
    asked: list[OrphanedHalf] = []
    nodes = ("n1", "n2") if how == "slave" else ()
    async with classic_pair(tmp_path, *nodes) as pair:
        pair.more = {"delivery": OFTEN}
        if how == "slave":
            await pair.stop()
            await pair.start("n1", "n2")
            program = await pair.writable("n1")
            await program.broker.put_topic(TopicConfig("t", 2, 2))
        else:
            program = await started(pair)
        program.delivery.on_orphan(asked.append)
        if how == "forgotten":
            monkeypatch.setattr(transactions, "_REMEMBERED", 1)
        texts = ["a", "b", "c"]
        ids = {text: await half(program, text) for text in texts}
        await until(lambda: len(asked) >= 3)
        if how == "restart":
            await pair.stop()
            program = await started(pair)
        elif how == "slave":
            await pair.in_step()
            await pair.stop("n1")
            await pair.node("n2").change_role(True, force=True)
            program = await pair.writable("n2")
        await program.delivery.end_transaction("t", ids["a"], Resolution.COMMIT)
        await program.delivery.end_transaction("t", ids["b"], Resolution.ROLLBACK)
        await program.delivery.end_transaction("t", ids["c"], Resolution.COMMIT)
        await until(lambda: bodies(program) == ["a", "c"])
        with pytest.raises(ReadFailed):
            await program.delivery.end_transaction("t", ids["b"], Resolution.COMMIT)


async def test_a_half_that_moves_while_its_newest_copy_is_searched_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[OrphanedHalf] = []
    found_at: list[int] = []
    has_moved = threading.Event()
    search = transactions.TransactionQueues._newest_copy

    def ask(orphan: OrphanedHalf) -> None:
        asked.append(orphan)
        if found_at and len(asked) >= found_at[0] + 6:  # all three were put behind others again
            has_moved.set()

    def slow_search(*given: Any) -> Any:
        copy = search(*given)
        if not found_at:
            found_at.append(len(asked))
            assert has_moved.wait(60)
        return copy

    monkeypatch.setattr(transactions, "_REMEMBERED", 1)
    monkeypatch.setattr(transactions.TransactionQueues, "_newest_copy", slow_search)
    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked)
        program.delivery.on_orphan(ask)
        first, *_ = [await half(program, text) for text in ("a", "b", "c")]
        await until(lambda: len(asked) >= 3)
        await program.delivery.end_transaction("t", first, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["a"])
        assert found_at


async def test_the_end_of_an_earlier_transaction_does_not_end_a_later_one_with_its_key(
    tmp_path: Path,
) -> None:
    """A program begins a transaction again with the same message object, whose key stays."""
    asked: list[OrphanedHalf] = []
    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked)
        born_ms = time.time_ns() // 1_000_000
        first = outgoing("again", UNIQ_KEY="k")._replace(born_timestamp=born_ms - 1)
        then = first._replace(born_timestamp=born_ms)
        send = partial(program.delivery.send_half, client_id="c", check_after_ms=0)
        ended = (await send("t", first, message_id="")).transaction_id
        await program.delivery.end_transaction("t", ended, Resolution.ROLLBACK)
        await send("t", then, message_id="")
        await until(lambda: len(asked) >= 2)
        await pair.stop()
        program = await started(pair)
        with pytest.raises(ReadFailed):
            await program.delivery.end_transaction("t", ended, Resolution.COMMIT)
        await program.files.wait_applied()
        assert bodies(program) == []


async def test_a_half_is_not_taken_for_a_message_with_its_offset_in_another_queue(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        born_ms = time.time_ns() // 1_000_000
        first = outgoing("half", UNIQ_KEY="k")._replace(born_timestamp=born_ms)
        other = outgoing("plain", UNIQ_KEY="k")._replace(born_timestamp=born_ms)
        begun = await program.delivery.send_half("t", first, message_id="k", client_id="c")
        sent = await send_to(program, "t", other, message_id="k", queue_id=0)
        assert sent.queue_offset == begun.queue_offset == 0
        again = await program.delivery.send_half("t", other, message_id="k", client_id="c")
        assert (again.transaction_id, again.is_repeated) == ("", True), "the plain message, no transaction"
        again = await program.delivery.send_half("t", first, message_id="k", client_id="c")
        assert (again.transaction_id, again.is_repeated) == (begun.transaction_id, True)


@pytest.mark.parametrize("is_moved", [False, True])
async def test_a_rollback_ends_the_send_of_its_own_half_alone(tmp_path: Path, is_moved: bool) -> None:
    """Two halves of one message object that was filled twice in a millisecond. A check moves both."""
    asked: list[OrphanedHalf] = []
    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked) if is_moved else await started(pair)
        born_ms = time.time_ns() // 1_000_000
        first, second = (
            outgoing(text, UNIQ_KEY="k")._replace(born_timestamp=born_ms) for text in ("first", "second")
        )
        send = partial(program.delivery.send_half, message_id="k", client_id="c", check_after_ms=0)
        ids = [(await send("t", one)).transaction_id for one in (first, second)]
        if is_moved:
            await until(lambda: {"first", "second"} <= {decode(one.record).body.decode() for one in asked})
        await program.delivery.end_transaction("t", ids[0], Resolution.ROLLBACK)
        assert (await send("t", second)).is_repeated
        with pytest.raises(IllegalMessage):
            await send("t", first)
        assert not (await send("t", first._replace(born_timestamp=born_ms + 1))).is_repeated


async def test_an_end_may_be_repeated_after_its_op_message_was_read(tmp_path: Path) -> None:
    asked: list[OrphanedHalf] = []
    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked)
        transaction = await half(program, "once")
        await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        await until(lambda: program.delivery_state.system_offset(HALF_TOPIC, 0) == 1)
        await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        with pytest.raises(ReadFailed):
            await program.delivery.end_transaction("t", transaction, Resolution.ROLLBACK)
        await until(lambda: bodies(program) == ["once"])


async def test_a_half_whose_end_is_under_way_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put behind the others, it would be open there, whatever its end was."""
    asked: list[OrphanedHalf] = []
    waiting: list[PutRequest] = []
    looks = 0
    read_records = transactions.read_records

    def reading(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        return read_records(*given)

    def wait(request: PutRequest) -> Any:
        waiting.append(request)
        return request.done

    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked, check_first_ms=500)
        transaction = await half(program, "once")
        committer = program.delivery._committer
        with monkeypatch.context() as patched:
            patched.setattr(committer, "submit", wait)
            patched.setattr(transactions, "read_records", reading)
            ending = program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
            task = asyncio.create_task(ending)
            await until(lambda: len(waiting) == 1)
            await until(lambda: looks > 3 or len(waiting) > 1)
        for request in waiting:
            committer.submit(request)
        await task
        await until(lambda: program.delivery_state.system_offset(HALF_TOPIC, 0) == 1)
        assert asked == [] and len(read(program, HALF_TOPIC)) == 1 and bodies(program) == ["once"]


async def test_a_half_that_nobody_answers_for_goes_where_users_find_it(tmp_path: Path) -> None:
    asked: list[OrphanedHalf] = []
    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked, max_checks=3)
        transaction = await half(program, "nobody's")
        await until(lambda: CHECK_MAX_TOPIC in program.metadata.topics)
        await until(lambda: bodies(program, CHECK_MAX_TOPIC) == ["nobody's"])
        assert [one.checks for one in asked] == [1, 2, 3] and bodies(program) == []
        with pytest.raises(ReadFailed):
            await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        _, end = program.files.bounds(HALF_TOPIC, 0)
        assert program.delivery_state.system_offset(HALF_TOPIC, 0) == end


async def test_a_half_of_a_producer_whose_clock_is_behind_is_asked_about(tmp_path: Path) -> None:
    """It is not older than messages become."""
    asked: list[OrphanedHalf] = []
    async with classic_pair(tmp_path, file_reserved_hours=1) as pair:
        program = await with_checks(pair, asked)
        born_ms = time.time_ns() // 1_000_000 - 3_700_000
        message = outgoing("young")._replace(born_timestamp=born_ms)
        half = await program.delivery.send_half(
            "t", message, message_id="young", client_id="c", check_after_ms=0
        )
        await until(lambda: len(asked) >= 2)
        assert CHECK_MAX_TOPIC not in program.metadata.topics
        await program.delivery.end_transaction("t", half.transaction_id, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["young"])


async def test_a_half_with_time_of_its_own_holds_up_no_other(tmp_path: Path) -> None:
    asked: list[OrphanedHalf] = []
    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked, check_again_ms=60_000)
        patient = await half(program, "patient", check_after_ms=600_000)
        await half(program, "hurried")
        await until(lambda: len(asked) == 1)
        assert decode(asked[0].record).body == b"hurried"
        await program.delivery.end_transaction("t", patient, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["patient"])


async def test_a_rollback_ends_the_send_of_a_half_that_was_put_behind_others(tmp_path: Path) -> None:
    asked: list[OrphanedHalf] = []
    async with classic_pair(tmp_path) as pair:
        program = await with_checks(pair, asked, check_again_ms=60_000)
        message = outgoing("patient", UNIQ_KEY="k")._replace(born_timestamp=time.time_ns() // 1_000_000)
        send = partial(program.delivery.send_half, "t", message_id="k", client_id="c", check_after_ms=600_000)
        transaction = (await send(message)).transaction_id
        await half(program, "hurried")
        await until(lambda: len(asked) == 1)
        assert (await send(message)).is_repeated
        await program.delivery.end_transaction("t", transaction, Resolution.ROLLBACK)
        with pytest.raises(IllegalMessage):
            await send(message)
        assert not (await send(message._replace(born_timestamp=message.born_timestamp + 1))).is_repeated


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC])
async def test_nobody_else_writes_the_brokers_own_topics(tmp_path: Path, topic: str) -> None:
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        with pytest.raises(BrokerError) as caught:
            await send_to(program, topic, [outgoing("forged")])
        assert caught.value.status is Status.TOPIC_RESERVED
        with pytest.raises(BrokerError):
            await program.broker.put_topic(TopicConfig(topic, 1, 1))
        await program.files.wait_applied()
        assert program.files.bounds(topic, 0) == (0, 0)
