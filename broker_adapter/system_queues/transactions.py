"""Halves of transactions in RMQ_SYS_TRANS_HALF_TOPIC, and their ends in RMQ_SYS_TRANS_OP_HALF_TOPIC.

A commit puts the message and its op message in one append, so it is there once. What is checked is put behind
the others, with the offset up to which all have been looked at, again in one append. Brokers of RocketMQ find
that offset among those of the group CID_RMQ_SYS_TRANS.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from broker_adapter.api import OutgoingMessage
from broker_adapter.commitlog.put_gathering import QueuedRecords
from broker_adapter.commitlog.record_writer import BrokerFields
from broker_adapter.deferred.deferring import DeferringParts, ToDefer
from broker_adapter.errors import IllegalMessage, ReadFailed, Status
from broker_adapter.format.host import known_host
from broker_adapter.format.message import Message, decode, encode
from broker_adapter.format.properties import TAGS, UNIQ_KEY, text_of
from broker_adapter.format.sys_flag import TRANSACTION_COMMIT
from broker_adapter.format.topic_names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC
from broker_adapter.pop.api import Half, OrphanedHalf, Resolution
from broker_adapter.pop.commands import SystemOffset
from broker_adapter.pop.committer import Request
from broker_adapter.pop.handles import half_handle, id_digest, parse_half
from broker_adapter.pop.sender import queue_place, settled, with_id, within
from broker_adapter.system_queues.due_loop import DueLoop
from broker_adapter.system_queues.judging import CheckRules, Judgement, Step, judge, offsets_of
from broker_adapter.system_queues.lost_tail import LostTail
from broker_adapter.system_queues.records import read_records
from broker_adapter.system_queues.waiting import (
    CHECK_TIMES,
    IMMUNITY_S,
    PREPARED,
    PREPARED_OFFSET,
    Waiting,
    fields_of,
    put_aside,
    waiting,
)
from dledger import DLedgerError

_log = structlog.get_logger(part="delivery")
_TRANSACTION_ID, _PRODUCER_GROUP = "__transactionId__", "PGROUP"
_REMOVE = "d"
#: Read at once, and put back in one append.
_STEP_MESSAGES, _STEP_BYTES = 32, 1 << 20
#: Ends, and new places of halves that were checked, that are remembered.
_REMEMBERED = 20_000


class HalfPosition(NamedTuple):
    """Of a half message: its queue offset, and its physical one."""

    offset: int
    physical: int


class Transactions:
    """On the master's event loop."""

    def __init__(self, parts: DeferringParts, reserved_ms: int) -> None:
        """`reserved_ms`: halves that are older are given up."""
        settings = parts.settings
        self._parts = parts
        self._rules = CheckRules(
            settings.check_first_ms, settings.check_again_ms, settings.max_checks, reserved_ms
        )
        self._ask: Callable[[OrphanedHalf], None] = lambda _: None
        self._loop = DueLoop("halves", self._look, parts.now_ms)
        self._lost_tail = LostTail(parts, [(HALF_TOPIC, 0), (OP_TOPIC, 0)])
        self._loaded = asyncio.Event()
        self.clear()

    def clear(self) -> None:
        self._ended = OrderedDict[int, Resolution | None]()  # None: an op message says so, and no more
        self._ops = deque[tuple[int, int]]()  # (its offset, the greatest one that it names)
        self._next_op = -1
        self._busy: dict[int, asyncio.Future[None]] = {}
        self._moved = OrderedDict[int, HalfPosition]()  # halves that were put behind others
        self._loaded.clear()

    def on_orphan(self, ask: Callable[[OrphanedHalf], None]) -> None:
        self._ask = ask

    def start(self) -> None:
        self.clear()
        self._lost_tail.start()
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        for offset in list(self._busy):
            self._free(offset)

    # -- taking in ----------------------------------------------------------------------------------------

    async def put(self, put: ToDefer, check_after_ms: int) -> Half:
        parts, topic, message = self._parts, put.config.name, put.message
        if check_after_ms > (most := parts.settings.max_delay_ms):
            text = f"check_after_ms {check_after_ms} is more than {most}, the longest that is taken"
            raise IllegalMessage(Status.DELAY_TOO_LONG, text)
        queue_id, digest = parts.writer.queue_of(put.config, put.queue_id), b""
        more = {PREPARED: "true", _PRODUCER_GROUP: message.properties.get(_PRODUCER_GROUP) or topic}
        if message_id := put.message_id:
            first = await parts.sender.outcome(topic, message_id, put.timeout_ms)
            if first is not None:
                half = await self._repeated(topic, message_id, queue_place(first)[1], put.timeout_ms)
                return half._replace(shortfall=await parts.sender.shortfall_of(first, put.timeout_ms))
            message, digest = with_id(message, message_id), id_digest(topic, message_id)
            more[_TRANSACTION_ID] = message_id
        if check_after_ms:
            more[IMMUNITY_S] = str(-(-check_after_ms // 1_000))
        aside = put_aside(message, topic, queue_id, more)
        records = parts.writer.records(HALF_TOPIC, 0, [aside], born_host=known_host(put.born_host))

        def stored(_: Request) -> None:
            """Also if whoever sent it was told that it is in doubt."""
            self._loop.expect(parts.now_ms() + (check_after_ms or self._rules.first_ms))

        request = parts.sender.request(digest, queued=[records], released=stored)
        done = await settled(put.timeout_ms, request.done)
        (place,) = done.places
        handle = half_handle(topic, place.queue_offset, place.physical_offset)
        return Half(handle, False, place.queue_offset, place.physical_offset, done.shortfall)

    async def _repeated(self, topic: str, message_id: str, offset: int, timeout_ms: int) -> Half:
        """A half that was sent before, unless it was a message of another kind."""
        files = self._parts.files
        if offset >= files.bounds(HALF_TOPIC, 0)[1]:
            try:  # it is in the log, and in its queue a moment later
                await files.wait_applied(timeout_ms=timeout_ms)
            except DLedgerError as error:
                raise ReadFailed(Status.NOT_CONFIRMED, error.message) from error
        found = await self._read(offset, 1)
        half = found[0] if found else None
        if half is None or (half.topic, half.properties.get(UNIQ_KEY)) != (topic, message_id):
            return Half("", True)
        physical = half.message.physical_offset
        return Half(half_handle(topic, offset, physical), True, offset, physical)

    # -- ending -------------------------------------------------------------------------------------------

    async def end(self, topic: str, transaction_id: str, resolution: Resolution, timeout_ms: int) -> bool:
        """False: it is no transaction id of a half that is kept here. Errors as of `DeliveryApi`."""
        found = parse_half(topic, transaction_id)
        if found is None:
            return False
        await within(timeout_ms, self._loaded.wait())
        place = await self._free_place(HalfPosition(*found), timeout_ms)
        half = await self._parts.run(partial(self._half_at, topic, place), "")
        place = await self._free_place(place, timeout_ms)  # nothing comes between this and the append
        if place.offset in self._ended:
            ending = self._ended[place.offset]
            if ending is None or resolution not in (ending, Resolution.UNKNOWN):
                raise _unknown(transaction_id, "has ended")
        elif half is None or place.offset < self._progress:
            raise _unknown(transaction_id, "is unknown")
        elif resolution is not Resolution.UNKNOWN:
            await within(timeout_ms, asyncio.shield(self._submit_end(place, half, resolution).done))
        return True

    async def _free_place(self, place: HalfPosition, timeout_ms: int) -> HalfPosition:
        """Where the half is by now, when nothing is under way for it."""
        while True:
            while (moved := self._moved.get(place.offset)) is not None:
                place = moved
            if (busy := self._busy.get(place.offset)) is None:
                return place
            await within(timeout_ms, asyncio.shield(busy))

    def _half_at(self, topic: str, place: HalfPosition) -> Waiting | None:
        """On a reader's thread."""
        try:
            half = waiting(self._parts.reader.message_at(place.physical))
        except ReadFailed as error:
            if error.status is Status.MESSAGE_NOT_FOUND:
                return None
            raise
        if half is None or half.message.topic != HALF_TOPIC:
            return None
        return half if (half.topic, half.message.queue_offset) == (topic, place.offset) else None

    def _submit_end(self, place: HalfPosition, half: Waiting, resolution: Resolution) -> Request:
        parts, writer = self._parts, self._parts.writer
        queued = []
        if resolution is Resolution.COMMIT:
            queue_id = writer.topics.fitting_queue(half.topic, half.queue_id)
            own = BrokerFields(TRANSACTION_COMMIT, half.reconsume_times, place.physical)
            host = half.message.born_host
            queued = [
                writer.records(
                    half.topic, queue_id, [half.restored()], born_host=host, is_moved=True, own=own
                )
            ]
        op = OutgoingMessage(b"%d," % place.offset, {TAGS: _REMOVE})
        queued.append(writer.records(OP_TOPIC, 0, [op], born_host=writer.store_host))
        # Changes nothing: with it, it is certain at last what became of the append.
        seen = SystemOffset(HALF_TOPIC, 0, self._progress)
        request = Request(
            queued=queued,
            elements=[seen],
            release=lambda: self._end_is_over(place.offset, resolution, request),
        )
        parts.committer.submit(request)
        self._occupy(place.offset)
        return request

    def _end_is_over(self, offset: int, resolution: Resolution, request: Request) -> None:
        if request.applied is not None:
            self._remember(offset, resolution)
        self._free(offset)

    # -- checking -----------------------------------------------------------------------------------------

    async def _look(self) -> int | None:
        if await self._parts.files.wait_applied() < 0:
            self._loaded.set()  # the log is empty
            return None
        await self._lost_tail.settle()
        await self._read_ops()
        self._loaded.set()
        least, end = self._parts.files.bounds(HALF_TOPIC, 0)
        offset, due_ms, has_put_back = min(max(least, self._progress), end), None, False
        while offset < end and due_ms is None:
            if offset in self._ended:  # without a look at the message
                offset += 1
                continue
            count, judged, due_ms = await self._judge_some(offset, end)
            offset += count
            has_put_back |= any(found.step is not Step.GIVE_UP for _, found in judged)
            if judged:
                await self._carry_out(offset, judged)
        if offset > self._progress:
            await self._carry_out(offset, ())
        if due_ms is None and has_put_back:
            # They may not be in the queue yet: an append is known to be applied before that.
            due_ms = self._parts.now_ms() + self._rules.again_ms
        return due_ms

    async def _judge_some(
        self, offset: int, end: int
    ) -> tuple[int, list[tuple[Waiting, Judgement]], int | None]:
        """How many halves from an offset on are done with; what has to be done for some of them; when to look
        at the next one, if that has to wait."""
        halves = await self._read(offset, min(_STEP_MESSAGES, end - offset))
        if not halves:
            return 0, [], self._parts.now_ms() + self._rules.again_ms
        judged: list[tuple[Waiting, Judgement]] = []
        size, now_ms = 0, self._parts.now_ms()
        for count, half in enumerate(halves):
            at = offset + count
            if at in self._busy:
                return count, judged, now_ms + self._rules.first_ms
            is_last = at + 1 >= end
            found = judge(half, self._ended, now_ms, self._rules, is_last=is_last)
            if found.step is Step.WAIT:
                return count, judged, found.due_ms
            if found.step is not Step.OVER and half is not None:
                size += len(half.message.body)
                if judged and size > _STEP_BYTES:
                    return count, judged, None
                judged.append((half, found))
        return len(halves), judged, None

    async def _carry_out(self, offset: int, judged: Sequence[tuple[Waiting, Judgement]]) -> None:
        """What was judged, and that all before `offset` was looked at, in one append."""
        for half, _ in judged:
            self._occupy(half.message.queue_offset)
        try:
            if any(found.step is Step.GIVE_UP for _, found in judged):
                await self._parts.make_topic(CHECK_MAX_TOPIC)
            queued = [self._put_back(half, found) for half, found in judged]
            elements = [SystemOffset(HALF_TOPIC, 0, offset), *self._done_ops(offset)]
            done = await self._parts.committer.submit(Request(queued=queued, elements=elements))
            for (half, found), place in zip(judged, done.places, strict=True):
                if found.step is not Step.GIVE_UP:
                    self._moved[half.message.queue_offset] = HalfPosition(
                        place.queue_offset, place.physical_offset
                    )
        finally:
            for half, _ in judged:
                self._free(half.message.queue_offset)
        while len(self._moved) > _REMEMBERED:
            self._moved.popitem(last=False)
        for half, found in judged:
            if found.step is Step.CHECK:
                self._ask(self._orphan(half, found))

    def _put_back(self, half: Waiting, found: Judgement) -> QueuedRecords:
        topic, changes = HALF_TOPIC, {}
        if found.step is Step.GIVE_UP:
            topic = CHECK_MAX_TOPIC
        elif found.step is Step.CHECK:
            changes = {CHECK_TIMES: str(found.checks)}
        else:
            first = half.number(PREPARED_OFFSET, half.message.queue_offset)
            changes = {PREPARED_OFFSET: str(first)}
        host, own = half.message.born_host, fields_of(half.topic, half.properties)
        return self._parts.writer.records(
            topic, 0, [half.again(changes)], born_host=host, is_moved=True, own=own
        )

    def _orphan(self, half: Waiting, found: Judgement) -> OrphanedHalf:
        """As its producer knows it, at the place where it is now."""
        message, place = half.message, self._moved[half.message.queue_offset]
        record = encode(
            Message(
                half.topic,
                message.body,
                text_of(half.again({CHECK_TIMES: str(found.checks)}).properties),
                half.queue_id,
                message.flag,
                place.offset,
                place.physical,
                message.sys_flag,
                message.born_timestamp,
                message.born_host,
                message.store_timestamp,
                message.store_host,
            )
        )
        handle = half_handle(half.topic, place.offset, place.physical)
        return OrphanedHalf(half.topic, handle, "", bytes(record), found.checks)

    # -- what is known ------------------------------------------------------------------------------------

    @property
    def _progress(self) -> int:
        """All halves before this offset were looked at."""
        return self._parts.state.system_offset(HALF_TOPIC, 0)

    async def _read(self, offset: int, count: int) -> list[Waiting | None]:
        parts = self._parts

        def read() -> list[Waiting | None]:
            least, end = parts.files.bounds(HALF_TOPIC, 0)
            if not least <= offset < end:
                return []
            units = parts.files.units(HALF_TOPIC, 0, offset, min(count, end - offset))
            records = read_records(parts.reader, units)
            return [None if record is None else waiting(record) for record in records]

        found: list[Waiting | None] = await parts.run(read, "")
        return found

    async def _read_ops(self) -> None:
        """Op messages that have come since the last look."""
        parts, files = self._parts, self._parts.files
        least, end = files.bounds(OP_TOPIC, 0)
        begin = self._next_op if self._next_op >= 0 else parts.state.system_offset(OP_TOPIC, 0)
        begin = min(max(least, begin), end)
        while begin < end:
            read = partial(read_ops, parts, begin, min(_STEP_MESSAGES, end - begin))
            ops: list[list[int]] = await parts.run(read, "")
            if not ops:
                break
            for at, offsets in enumerate(ops, begin):
                self._ops.append((at, max(offsets, default=-1)))
                for offset in offsets:
                    if offset >= self._progress and offset not in self._ended:
                        self._remember(offset, None)
            begin += len(ops)
        self._next_op = begin

    def _done_ops(self, progress: int) -> list[SystemOffset]:
        """Op messages from the first one on that name nothing which is still looked at."""
        done = -1
        while self._ops and self._ops[0][1] < progress:
            done = self._ops.popleft()[0]
        return [] if done < 0 else [SystemOffset(OP_TOPIC, 0, done + 1)]

    def _remember(self, offset: int, ending: Resolution | None) -> None:
        self._ended[offset] = ending
        while len(self._ended) > _REMEMBERED and (first := next(iter(self._ended))) < self._progress:
            del self._ended[first]

    def _occupy(self, offset: int) -> None:
        self._busy[offset] = asyncio.get_running_loop().create_future()

    def _free(self, offset: int) -> None:
        busy = self._busy.pop(offset, None)
        if busy is not None and not busy.done():
            busy.set_result(None)


def read_ops(parts: DeferringParts, begin: int, count: int) -> list[list[int]]:
    """Which halves each op message names. On a reader's thread."""
    units = parts.files.units(OP_TOPIC, 0, begin, count)
    found = []
    for record in read_records(parts.reader, units):
        found.append([] if record is None else offsets_of(decode(record).body))
    return found


def _unknown(transaction_id: str, why: str) -> ReadFailed:
    return ReadFailed(Status.TRANSACTION_UNKNOWN, f"transaction {transaction_id[:64]!r} {why}")
