"""Sends that arrive together at a node that is not the master: one list there, and one list at the master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.forwarding import service
from broker_adapter.endpoints.forwarding.frames import MAX_PART_BYTES
from broker_adapter.endpoints.forwarding.link import MasterLink
from broker_adapter.endpoints.forwarding.members import Members
from broker_adapter.endpoints.forwarding.service import ForwardService
from broker_adapter.endpoints.lists.calls import ListedCall, ListOutcomes
from broker_adapter.endpoints.lists.send_list import NodeSends
from broker_adapter.endpoints.v4.request import CHANGE, REMOTING, SEND, RemotingRequest
from broker_adapter.endpoints.v4.requests import request_of
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, NotMaster, ResponseCode, Status, error_for
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand, decode, encode
from dledger.infra.loops.turns import MAX_TOGETHER, MAX_WOKEN, WakeQueue
from tests.broker_adapter.v4.test_send_lists import ALONE, CONTEXT, UNKNOWN, FakeProcessor, Listed, NotStarted
from tests.broker_adapter.v5.forwarding.test_forwarder import Pair, Scripted, config
from tests.node.local import until

STORED = ResponseCode.SUCCESS
#: Longer than any test, because the first response wakes the list.
LONG = CONTEXT._replace(timeout_s=60.0)


class Lists(NodeSends):
    """The master's sends. Counts the sends of each list."""

    sizes: list[int]

    async def answer_list(self, calls: Sequence[ListedCall], outcomes: ListOutcomes) -> None:
        self.sizes.append(len(calls))
        await super().answer_list(calls, outcomes)


class Alone(Scripted):
    """The master's other handlers."""

    async def unary(self, request: Request, context: CallContext) -> bytes:
        await super().unary(request, context)
        assert isinstance(request, RemotingRequest)
        return encode(request.command.answer(STORED, fields={"alone": "true"}))


class ListPair(Pair):
    """n1 forwards sends to n2, which stores them as `outcomes` say. Without `has_lists`, n2 is older."""

    def __init__(
        self, outcomes: Mapping[str, object], settings: ClientServiceSettings, has_lists: bool
    ) -> None:
        self.has_lists = has_lists
        self.processor = FakeProcessor(outcomes)
        self.lists = Lists({REMOTING: self.processor}, lambda: True, lambda calls: None, timeout_s=30.0)
        self.lists.sizes = []
        super().__init__(Alone(), settings)

    def make_service(self) -> ForwardService:
        return ForwardService(
            self.remote,
            Members(config("n2", self.members)),
            self.connected,
            self.settings,
            lambda: self.is_remote_master,
            request_of,
            self.lists if self.has_lists else None,
        )

    @property
    def link(self) -> MasterLink:
        link = self.forwarder.link
        assert link is not None
        return link

    def forward(self, listed: Listed, context: CallContext = LONG) -> asyncio.Task[None]:
        forwarding = listed.process(context, lambda found: found.forward(self.forwarder.forward_list))
        return asyncio.create_task(forwarding)


@asynccontextmanager
async def pair(
    outcomes: Mapping[str, object],
    settings: ClientServiceSettings | None = None,
    *,
    master: ClientServiceSettings | None = None,
    has_lists: bool = True,
) -> AsyncIterator[ListPair]:
    p = ListPair(outcomes, settings or ClientServiceSettings(), has_lists)
    if master is not None:
        p.settings = master
        p.service = p.make_service()
    await p.start()
    p.lead("n2")
    p.remote_master(True)
    try:
        await until(lambda: p.forwarder.destination() is not None)
        yield p
    finally:
        await p.forwarder.stop()
        p.service.stop()
        await p.server.stop(None)


class BusyLoop(WakeQueue):
    """Gives nobody a turn until `is_over`."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.is_over = asyncio.Event()

    async def turn(self, key: Hashable) -> None:
        self.waiting += 1
        await self.is_over.wait()


def codes(listed: Listed) -> dict[str, int]:
    return {topic: answer.code for topic, answer in listed.answered.items()}


async def test_a_list_is_forwarded_in_one_frame_and_answered_in_one_write() -> None:
    given = {f"t{n}": STORED for n in range(MAX_TOGETHER)}
    async with pair(given) as p:
        listed = Listed(given)
        await p.forward(listed)
        assert p.lists.sizes == [MAX_TOGETHER] == listed.writes
        assert list(p.processor.started) == list(given), "in order"
        assert codes(listed) == given
        assert p.remote.seen == []
        assert p.forwarder.figures.outcomes == {
            ("Remoting", "answered"): MAX_TOGETHER,
            ("Remoting", "unknown"): 0,
        }
        assert (len(p.link), p.link.sent_bytes, p.link.waiting_bytes) == (0, 0, 0)


async def test_lists_of_several_clients_share_lists_at_the_master() -> None:
    given = {f"t{n}": STORED for n in range(2 * MAX_TOGETHER)}
    other = LONG._replace(client_id="d", remote="127.0.0.2:1", account="a")
    async with pair(given) as p:
        topics = list(given)
        first, second = Listed(topics[:20]), Listed(topics[20:])
        await asyncio.gather(p.forward(first), p.forward(second, other))
        assert p.lists.sizes == [MAX_TOGETHER] * 2
        for topic, context in p.processor.contexts.items():
            sent = LONG if topic in first.answered else other
            assert context._replace(timeout_s=sent.timeout_s) == sent
        assert codes(first) | codes(second) == given


async def test_the_lists_of_a_frame_share_the_turns_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame has thousands of sends. Processed in one step, they would delay everything else."""
    of_turn = [0]
    answer_list = Lists.answer_list

    async def counted(self: Lists, calls: Sequence[ListedCall], outcomes: ListOutcomes) -> None:
        of_turn[-1] += 1
        await answer_list(self, calls, outcomes)

    monkeypatch.setattr(Lists, "answer_list", counted)
    given = {f"t{n}": STORED for n in range(16 * MAX_TOGETHER)}
    async with pair(given) as p:
        forwarding = p.forward(Listed(given))
        while not forwarding.done():
            of_turn.append(0)
            await asyncio.sleep(0)
        await forwarding
        assert p.lists.sizes == [MAX_TOGETHER] * 16
        assert max(of_turn) <= 2 * MAX_WOKEN


async def test_outcomes_at_the_master_stay_per_send() -> None:
    """Also defects, refusals, sends that are stored but less durable than configured, and lookups."""
    refused = error_for(Status.BODY_TOO_LARGE, "large")
    given: dict[str, object] = {
        "defect": NotStarted(TypeError("a defect")),
        "refused": refused,
        "disk": ResponseCode.FLUSH_DISK_TIMEOUT,
        "slave": ResponseCode.FLUSH_SLAVE_TIMEOUT,
        "alone": ALONE,
        "moved": NotMaster("elsewhere"),
        "not started": NotStarted(NotMaster("elsewhere")),
        "unknown": UNKNOWN,
        "stored": STORED,
    }
    async with pair(given) as p:
        listed = Listed(given)
        await p.forward(listed)
        assert p.lists.sizes == [len(given)]
        assert codes(listed) == {
            "defect": ResponseCode.SYSTEM_ERROR,
            "refused": refused.response_code,
            "disk": ResponseCode.FLUSH_DISK_TIMEOUT,
            "slave": ResponseCode.FLUSH_SLAVE_TIMEOUT,
            "alone": STORED,
            "stored": STORED,
        }
        assert "a defect" not in (listed.answered["defect"].remark or "")
        assert listed.answered["alone"].fields == {"alone": "true"}
        assert listed.repeated == {"moved": False, "not started": False, "unknown": True}
        assert p.forwarder.figures.outcomes["Remoting", "sent again"] == 3
        assert (len(p.link), p.link.sent_bytes, p.link.waiting_bytes) == (0, 0, 0), "also of refused sends"


async def test_a_send_that_ends_before_an_earlier_one_gets_its_own_outcome() -> None:
    async with pair(dict.fromkeys("abc")) as p:
        listed, started = Listed("abc"), p.processor.started
        forwarding = p.forward(listed)
        await until(lambda: len(started) == 3)
        started["c"].set_result(ResponseCode.FLUSH_SLAVE_TIMEOUT)
        started["a"].set_result(STORED)
        await until(lambda: len(listed.answered) == 2)
        assert codes(listed) == {"a": STORED, "c": ResponseCode.FLUSH_SLAVE_TIMEOUT}
        started["b"].set_result(ResponseCode.FLUSH_DISK_TIMEOUT)
        await forwarding
        assert codes(listed)["b"] == ResponseCode.FLUSH_DISK_TIMEOUT


async def test_a_defect_of_the_list_itself_fails_its_sends_and_not_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(self: NodeSends, calls: object, outcomes: ListOutcomes) -> None:
        outcomes.answer([(0, encode(RemotingCommand(STORED, flag=1)))])
        raise ZeroDivisionError

    async with pair({"a": STORED, "b": STORED}) as p:
        link = p.link
        with monkeypatch.context() as patched:
            patched.setattr(Lists, "answer_list", broken)
            listed = Listed(["a", "b"])
            await p.forward(listed)
            assert codes(listed) == {"a": STORED, "b": ResponseCode.SYSTEM_ERROR}
        listed = Listed(["a", "b"])
        await p.forward(listed)
        assert codes(listed) == {"a": STORED, "b": STORED} and p.link is link


@pytest.mark.parametrize("uniq", ["UNIQ_KEY\x01u", ""])
@pytest.mark.parametrize("event", ["link", "leader"])
async def test_after_a_change_of_the_master_each_send_with_an_id_is_tried_again(
    uniq: str, event: str
) -> None:
    async with pair({"stored": STORED, "never": None, "never too": None}) as p:
        listed = Listed(["stored", "never", "never too"], uniq)
        forwarding = p.forward(listed)
        await until(lambda: "stored" in listed.answered)
        if event == "link":
            await p.restart()
        else:
            p.lead("n1")
        await forwarding
        lost = {"never", "never too"}
        assert listed.repeated == (dict.fromkeys(lost, True) if uniq else {})
        assert codes(listed) == {"stored": STORED} | (
            {} if uniq else dict.fromkeys(lost, UNKNOWN.response_code)
        )
        assert not any(done.cancelled() for done in p.processor.started.values())


async def test_a_list_that_waits_for_its_turn_is_stored_even_if_its_connection_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = BusyLoop()
    monkeypatch.setattr(service, "wake_queue", lambda: busy)
    async with pair({"a": STORED, "b": STORED}) as p:
        listed = Listed(["a", "b"])
        forwarding = p.forward(listed)
        (node,) = p.service._nodes
        await until(lambda: busy.waiting == 1)
        await p.restart()
        await forwarding
        assert listed.repeated == {"a": True, "b": True} and not p.processor.started
        busy.is_over.set()
        await until(lambda: node.listed == 0)
        assert list(p.processor.started) == ["a", "b"]


async def test_sends_that_were_not_written_are_tried_again_even_without_an_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair({"a": STORED, "b": STORED}) as p:
        monkeypatch.setattr(p.link._batcher, "_put", lambda size, add: None)
        listed = Listed(["a", "b"], uniq="")
        forwarding = p.forward(listed)
        await until(lambda: len(p.link) == 2)
        p.lead("n1")
        await forwarding
        assert listed.repeated == {"a": False, "b": False} and not p.processor.started


async def test_without_a_master_each_send_waits_alone() -> None:
    async with pair({}) as p:
        p.lead(None)
        listed = Listed(["a", "b"])
        await p.forward(listed)
        assert listed.alone == {"a": None, "b": None}


async def test_a_deadline_ends_the_wait_and_not_the_append() -> None:
    async with pair({"stored": STORED, "never": None}) as p:
        listed = Listed(["stored", "never"])
        await p.forward(listed, CONTEXT._replace(timeout_s=1.0))
        assert codes(listed)["never"] == UNKNOWN.response_code and not listed.repeated
        assert (len(p.link), p.link.sent_bytes) == (0, 0)
        assert p.forwarder.figures.outcomes["Remoting", "unknown"] == 1
        (node,) = p.service._nodes
        await until(lambda: node.listed == 0)
        assert not p.processor.started["never"].done()


async def test_a_list_is_cut_to_the_size_of_frames() -> None:
    given = {f"t{n}": STORED for n in range(MAX_TOGETHER)}
    async with pair(given) as p:
        listed = Listed(given, body=bytes(60_000))
        await p.forward(listed)
        assert codes(listed) == given
        assert sum(p.lists.sizes) == MAX_TOGETHER
        assert max(p.lists.sizes) * 60_000 <= 1 << 20


async def test_a_send_that_is_too_large_to_forward_concerns_no_other() -> None:
    async with pair({"a": STORED, "b": STORED, "c": STORED}) as p:
        listed = Listed(["a", "b", "c"])
        list(listed.left.values())[1].body = bytes(MAX_PART_BYTES)
        await p.forward(listed)
        too_large = error_for(Status.BODY_TOO_LARGE, "").response_code
        assert codes(listed) == {"a": STORED, "b": too_large, "c": STORED}


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (ClientServiceSettings(max_calls=4, max_waiting_receives=4), 6),
        (ClientServiceSettings(max_forwarded_bytes=12_000), 7),
    ],
)
async def test_a_full_link_refuses_sends_one_by_one(settings: ClientServiceSettings, count: int) -> None:
    """Another connection, and a call of the same one that still fits, are served."""
    given = {f"t{n}": None for n in range(20)}
    async with pair(given, settings) as p:
        listed = Listed(given, body=bytes(1_000))
        forwarding = p.forward(listed)
        await until(lambda: len(p.processor.started) == count)
        assert list(p.processor.started) == list(given)[:count]
        assert codes(listed) == dict.fromkeys(list(given)[count:], ResponseCode.SYSTEM_BUSY)
        assert listed.writes == [20 - count]
        end = RemotingRequest(RemotingCommand(RequestCode.END_TRANSACTION, {}), CHANGE)
        context = LONG if count == 7 else LONG._replace(remote="127.0.0.2:1")
        assert decode((await p.forwarder.unary(end, context))[4:]).code == STORED
        for done in p.processor.started.values():
            done.set_result(STORED)
        await forwarding
        assert list(codes(listed).values()).count(STORED) == count
        assert (len(p.link), p.link.sent_bytes) == (0, 0)


async def test_the_master_counts_the_sends_of_lists_as_calls() -> None:
    given = {f"t{n}": None for n in range(10)}
    async with pair(given, master=ClientServiceSettings(max_calls=2, max_waiting_receives=2)) as p:
        listed = Listed(given)
        forwarding = p.forward(listed)
        await until(lambda: len(listed.answered) == 6)
        assert set(codes(listed).values()) == {ResponseCode.SYSTEM_BUSY}
        assert list(p.processor.started) == ["t0", "t1", "t2", "t3"]
        for done in p.processor.started.values():
            done.set_result(STORED)
        await forwarding
        again = Listed(["t4"])
        p.processor.outcomes = {"t4": STORED}
        await p.forward(again)
        assert codes(again) == {"t4": STORED}


async def test_an_older_master_answers_the_sends_of_a_list_one_by_one() -> None:
    async with pair({}, has_lists=False) as p:
        p.remote.script += [b"", error_for(Status.NOT_MASTER, "not I"), UNKNOWN]
        listed = Listed(["a", "moved", "unknown", "d"])
        await p.forward(listed)
        assert codes(listed) == {"a": STORED, "d": STORED}
        assert listed.repeated == {"moved": False, "unknown": True}


async def test_an_older_node_forwards_sends_one_by_one() -> None:
    given: dict[str, object] = {
        "a": STORED,
        "refused": error_for(Status.BODY_TOO_LARGE, "large"),
        "c": STORED,
    }
    async with pair(given) as p:
        commands = [RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"b": topic}) for topic in given]
        calls = [p.forwarder.unary(RemotingRequest(command, SEND), LONG) for command in commands]
        answers = [decode(data[4:]).code for data in await asyncio.gather(*calls)]
        assert answers == [STORED, cast(BrokerError, given["refused"]).response_code, STORED]
        assert p.remote.seen == []
