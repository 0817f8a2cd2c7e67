"""Half messages in RMQ_SYS_TRANS_HALF_TOPIC, and the ends of their transactions in
RMQ_SYS_TRANS_OP_HALF_TOPIC.

A commit appends the message and its op message together, so that the message is stored once. A check moves
the half message to the end of its queue and stores the progress offset in the same append. RocketMQ brokers
read that offset as an offset of the group CID_RMQ_SYS_TRANS.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery_state.commands import Element, EndHalfId, SystemOffset
from broker_adapter.delivery_state.duplicate_filter import HALF, Position, SendIdentity, id_digest
from broker_adapter.delivery_state.handles import half_handle, parse_half
from broker_adapter.errors import IllegalMessage, ReadFailed, Status
from broker_adapter.put.committer import PutRequest
from broker_adapter.put.message_writer import QueuedRecords
from broker_adapter.put.record_writer import BrokerFields, retry_fields
from broker_adapter.put.sender import EarlierSend, queue_place, wait_for_result, wait_with_timeout, with_id
from broker_adapter.scheduled.deferring import (
    DeferredStoreParts,
    DeferRequest,
    HalfName,
    OrphanedHalf,
    Resolution,
    StoredHalf,
    TransactionEnd,
)
from broker_adapter.scheduled.due_loop import DueLoop
from broker_adapter.scheduled.judging import CheckAction, CheckDecision, CheckRules, judge, offsets_of
from broker_adapter.scheduled.lost_tail import LostTail
from broker_adapter.scheduled.system_records import read_records
from broker_adapter.scheduled.waiting import (
    CHECK_TIMES,
    IMMUNITY_S,
    PREPARED,
    PREPARED_OFFSET,
    SINCE,
    PendingMessage,
    put_aside,
    waiting,
)
from broker_adapter.wire.host import known_host
from broker_adapter.wire.message import MessageRecord, decode, encode
from broker_adapter.wire.properties import PRODUCER_GROUP, TAGS, UNIQ_KEY, text_of
from broker_adapter.wire.sys_flag import TRANSACTION_COMMIT
from broker_adapter.wire.topic_names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC
from dledger import DLedgerError

_log = structlog.get_logger(part="delivery")
_TRANSACTION_ID = "__transactionId__"
_REMOVE = "d"
# Limits for one read and for the append that follows it.
_STEP_MESSAGES, _STEP_BYTES = 32, 1 << 20
# Maximum number of ends, and of moves, in memory.
_REMEMBERED = 20_000
# Maximum number of messages to read in search of the newest copy of a half message, because the keys of other
# messages may have the same hash.
_MOST_COPIES = 32
_NO_END_MS = 1 << 62
# Timeout for the index if the caller has none: the default client timeout.
_INDEX_WAIT_MS = 3_000


class HalfPosition(NamedTuple):
    """The queue offset and physical offset of a half message."""

    offset: int
    physical: int


class TransactionQueues:
    """Stores, checks and ends half messages. Runs on the master's event loop."""

    def __init__(self, parts: DeferredStoreParts, reserved_ms: int) -> None:
        """`reserved_ms`: maximum age of a half message. Older ones are given up after a check."""
        settings = parts.settings
        self._parts = parts
        self._rules = CheckRules(
            settings.check_first_ms, settings.check_again_ms, settings.max_checks, reserved_ms
        )
        self._check_producer: Callable[[OrphanedHalf], None] = lambda _: None
        self._loop = DueLoop("halves", self._check_halves, parts.now_ms)
        self._lost_tail = LostTail(parts, [(HALF_TOPIC, 0), (OP_TOPIC, 0)])
        self._loaded = asyncio.Event()
        self.clear()

    def clear(self) -> None:
        self._ended = OrderedDict[int, Resolution | None]()  # None: known only from an op message
        # (offset of the op message, greatest offset of a half message in it)
        self._ops = deque[tuple[int, int]]()
        self._next_op = -1
        self._busy: dict[int, asyncio.Future[None]] = {}
        # Rollbacks in progress, by the half offset in the client's transaction id.
        self._rolling_back: dict[int, asyncio.Future[None]] = {}
        self._moved = OrderedDict[int, HalfPosition]()  # halves moved to the end of their queue
        self._loaded.clear()

    def on_orphan(self, check: Callable[[OrphanedHalf], None]) -> None:
        self._check_producer = check

    def start(self) -> None:
        self.clear()
        self._lost_tail.start()
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        for offset in list(self._busy):
            self._free(offset)

    # -- storing messages --------------------------------------------------------------------------------

    async def put(self, put: DeferRequest, check_after_ms: int) -> StoredHalf:
        parts, topic, message = self._parts, put.config.name, put.message
        if check_after_ms > (most := parts.settings.max_delay_ms):
            text = f"check_after_ms {check_after_ms} exceeds the maximum of {most}"
            raise IllegalMessage(Status.DELAY_TOO_LONG, text)
        queue_id = parts.writer.queue_of(put.config, put.queue_id)
        more = {PREPARED: "true", PRODUCER_GROUP: message.properties.get(PRODUCER_GROUP) or topic}
        identity = parts.sender.identity(topic, put.message_id, [message])
        if identity is not None:
            earlier = await self._earlier(identity, put.timeout_ms)
            if earlier is not None:
                parts.sender.count_duplicate(topic)
                half = await self._repeated(topic, put.message_id, earlier, put.timeout_ms)
                return half._replace(put_status=await parts.sender.put_status_of(earlier, put.timeout_ms))
            message = message._replace(born_timestamp=identity.born_ms)
        if put.message_id:
            message = with_id(message, put.message_id)
            more[_TRANSACTION_ID] = put.message_id
        if check_after_ms:
            more[IMMUNITY_S] = str(-(-check_after_ms // 1_000))
        more[SINCE] = str(parts.now_ms() - parts.writer.steps_ms)
        aside = put_aside(message, topic, queue_id, more)
        records = parts.writer.records(HALF_TOPIC, 0, [aside], born_host=known_host(put.born_host))

        def stored(_: PutRequest) -> None:
            """Schedule the next check of half messages. Also runs if the sender has stopped waiting."""
            self._loop.expect(parts.now_ms() + (check_after_ms or self._rules.first_ms))

        request = parts.sender.request(
            identity, queued=[records], id_queue_id=HALF, released=stored, born_host=put.born_host
        )
        done = await wait_for_result(put.timeout_ms, request.done)
        (place,) = done.places
        handle = half_handle(topic, place.queue_offset, place.physical_offset)
        return StoredHalf(handle, False, place.queue_offset, place.physical_offset, done.put_status)

    async def _earlier(self, identity: SendIdentity, timeout_ms: int) -> EarlierSend | Position | None:
        """Return `Sender.outcome` once no rollback of the earlier half message is in progress, and this
        attempt is recorded.

        Clients end transactions with one-way requests. They may therefore send the message again before the
        end of the transaction is applied.
        """
        while (earlier := await self._parts.sender.outcome(identity, timeout_ms)) is not None:
            place = Position(*queue_place(earlier))
            if place.queue_id != HALF:
                break
            if (rolling_back := self._rolling_back.get(place.queue_offset)) is not None:
                await wait_with_timeout(timeout_ms, asyncio.shield(rolling_back))
            elif await self._parts.sender.record_attempt(identity, earlier, place, timeout_ms):
                break
        return earlier

    async def _repeated(
        self, topic: str, message_id: str, earlier: EarlierSend | Position, timeout_ms: int
    ) -> StoredHalf:
        """Return the half message of an earlier send.

        The result is empty if that send did not store a half message.
        """
        queue_id, offset = queue_place(earlier)
        if queue_id != HALF:  # the offset belongs to another queue
            return StoredHalf("", True)
        files = self._parts.files
        if offset >= files.bounds(HALF_TOPIC, 0)[1]:
            await self._wait_applied(timeout_ms)  # the half message is in the log, but not in its queue yet
        found = await self._read(offset, 1)
        half = found[0] if found else None
        if half is None or (half.topic, half.properties.get(UNIQ_KEY)) != (topic, message_id):
            return StoredHalf("", True)
        physical = half.message.physical_offset
        return StoredHalf(half_handle(topic, offset, physical), True, offset, physical)

    # -- ending messages ---------------------------------------------------------------------------------

    async def half_at(self, queue_offset: int, physical_offset: int) -> HalfName | None:
        """See `DeliveryApi.half_at`."""
        place = HalfPosition(queue_offset, physical_offset)
        half: PendingMessage | None = await self._parts.run(partial(self._half_at, "", place), "")
        return None if half is None else HalfName(half.topic, half_handle(half.topic, *place))

    async def end_transaction(self, end: TransactionEnd, timeout_ms: int) -> bool:
        """End a transaction. Return False if the id does not belong to a half message in the queue.

        Raises the errors of `DeliveryApi.end_transaction`.
        """
        found = parse_half(end.topic, end.transaction_id)
        if found is None:
            return False
        if end.resolution is not Resolution.ROLLBACK or found[0] in self._rolling_back:
            await self._end_half(end, HalfPosition(*found), timeout_ms)
            return True
        is_over = self._rolling_back[found[0]] = asyncio.get_running_loop().create_future()
        try:
            await self._end_half(end, HalfPosition(*found), timeout_ms)
        finally:
            self._rolling_back.pop(found[0], None)
            if not is_over.done():
                is_over.set_result(None)
        return True

    async def _end_half(self, end: TransactionEnd, place: HalfPosition, timeout_ms: int) -> None:
        resolution = end.resolution
        await wait_with_timeout(timeout_ms, self._loaded.wait())
        place = await self._free_place(place, timeout_ms)
        half: PendingMessage | None = await self._parts.run(partial(self._half_at, end.topic, place), "")
        if half is not None:
            end.check_group(half.properties)
        is_rollback = half is not None and resolution is Resolution.ROLLBACK
        ended_ids = [await self._id_ended(half)] if half is not None and is_rollback else []
        place = await self._free_place(place, timeout_ms)
        # A check may move the half message during the search, and later moves may then evict this move from
        # memory.
        while half is not None and place.offset < self._progress and place.offset not in self._ended:
            half = await self._find_moved(half, timeout_ms)
            if half is not None:
                place = await self._free_place(_position_of(half), timeout_ms)
        # No await between here and the append.
        if place.offset in self._ended:
            ending = self._ended[place.offset]
            if ending is None or resolution not in (ending, Resolution.UNKNOWN):
                raise end.unknown("has ended")
        elif half is None or place.offset < self._progress:
            raise end.unknown("is unknown")
        elif resolution is not Resolution.UNKNOWN:
            await wait_with_timeout(
                timeout_ms, asyncio.shield(self._submit_end(place, half, resolution, ended_ids).done)
            )

    async def _free_place(self, place: HalfPosition, timeout_ms: int) -> HalfPosition:
        """Return the current position of a half message once no operation on it is in progress."""
        while True:
            while (moved := self._moved.get(place.offset)) is not None:
                place = moved
            if (busy := self._busy.get(place.offset)) is None:
                return place
            await wait_with_timeout(timeout_ms, asyncio.shield(busy))

    def _half_at(self, topic: str, place: HalfPosition) -> PendingMessage | None:
        """Read a half message of this topic, or of any topic if it is "". Call from a reader thread."""
        try:
            half = waiting(self._parts.reader.message_at(place.physical))
        except ReadFailed as error:
            if error.status is Status.MESSAGE_NOT_FOUND:
                return None
            raise
        if half is None or half.message.topic != HALF_TOPIC:
            return None
        is_meant = topic in ("", half.topic) and half.message.queue_offset == place.offset
        return half if is_meant else None

    async def _find_moved(self, half: PendingMessage, timeout_ms: int) -> PendingMessage | None:
        """Return the newest copy of a half message whose move is no longer in memory.

        Moves are remembered only in memory. Suppose that a check moves a half message, and the broker
        restarts. The producer may still commit with the transaction id that contains the first position. The
        newest copy has the same key, body and born timestamp. Returns None if there is no newer copy. Raises
        ReadFailed (NOT_CONFIRMED).
        """
        # the index adds the keys of a batch after the commands of the batch are applied
        await self._wait_applied(timeout_ms)
        copy: PendingMessage | None = await self._parts.run(partial(self._newest_copy, half, timeout_ms), "")
        if copy is None or copy.message.queue_offset <= half.message.queue_offset:
            return None
        self._note_move(half.message.queue_offset, _position_of(copy))
        return copy

    def _newest_copy(self, half: PendingMessage, timeout_ms: int) -> PendingMessage | None:
        """Call from a reader thread."""
        parts, key = self._parts, half.properties.get(UNIQ_KEY)
        if not key:
            return None
        parts.files.wait_keys(timeout_ms or _INDEX_WAIT_MS)
        begin_ms = half.message.store_timestamp
        found = parts.reader.query(
            HALF_TOPIC, key, begin_ms=begin_ms, end_ms=_NO_END_MS, max_messages=_MOST_COPIES
        )
        copies = (waiting(record) for record in found)
        return next((copy for copy in copies if copy is not None and _is_copy(copy, half)), None)

    async def _wait_applied(self, timeout_ms: int) -> None:
        """Wait until all entries that are already committed have been dispatched.

        Raises ReadFailed (NOT_CONFIRMED).
        """
        try:
            await self._parts.files.wait_applied(timeout=(timeout_ms or _INDEX_WAIT_MS) / 1000)
        except DLedgerError as error:
            raise ReadFailed(Status.NOT_CONFIRMED, error.message) from error

    def _note_move(self, offset: int, position: HalfPosition) -> None:
        self._moved[offset] = position
        while len(self._moved) > _REMEMBERED:
            self._moved.popitem(last=False)

    async def _id_ended(self, half: PendingMessage) -> EndHalfId:
        """Return a command that marks the send of a half message as ended, because it was never stored in its
        queue.

        A program may reuse one message object several times in a millisecond. The half messages then have the
        same id and born timestamp, and only the offsets of their first copies distinguish them.
        """
        message, key = half.message, id_digest(half.topic, half.properties.get(UNIQ_KEY, ""))
        offset, born_ms = message.queue_offset, message.born_timestamp
        if CHECK_TIMES in half.properties or PREPARED_OFFSET in half.properties:  # the half message was moved
            with self._parts.state.lock:
                offsets = self._parts.state.ids.half_offsets(key, born_ms)
            offset = -1
            for first in offsets:
                found = await self._read(first, 1)
                if found and found[0] is not None and found[0].is_equal(half):
                    offset = first
        return EndHalfId(key, born_ms, offset)

    def _submit_end(
        self,
        place: HalfPosition,
        half: PendingMessage,
        resolution: Resolution,
        ended_ids: Sequence[EndHalfId],
    ) -> PutRequest:
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
        # This element changes nothing. Its outcome shows that the append was applied.
        elements: list[Element] = [SystemOffset(HALF_TOPIC, 0, self._progress), *ended_ids]
        request = PutRequest(
            queued=queued,
            elements=elements,
            release=lambda: self._on_end_released(place.offset, resolution, request),
        )
        parts.committer.submit(request)
        self._occupy(place.offset)
        return request

    def _on_end_released(self, offset: int, resolution: Resolution, request: PutRequest) -> None:
        if request.applied is not None:
            self._remember(offset, resolution)
        self._free(offset)

    # -- checking ----------------------------------------------------------------------------------------

    async def _check_halves(self) -> int | None:
        if await self._parts.files.wait_applied() < 0:
            self._loaded.set()  # the log is empty
            return None
        await self._lost_tail.settle()
        await self._read_ops()
        self._loaded.set()
        least, end = self._parts.files.bounds(HALF_TOPIC, 0)
        offset, due_ms, has_put_back = min(max(least, self._progress), end), None, False
        while offset < end and due_ms is None:
            if offset in self._ended:  # no need to read the message
                offset += 1
                continue
            count, judged, due_ms = await self._judge_batch(offset, end)
            offset += count
            has_put_back |= any(found.step is not CheckAction.GIVE_UP for _, found in judged)
            if judged:
                await self._carry_out(offset, judged)
        if offset > self._progress:
            await self._carry_out(offset, ())
        if due_ms is None and has_put_back:
            # Appends complete before dispatch, so the moved half messages may not be in the queue yet.
            due_ms = self._parts.now_ms() + self._rules.again_ms
        return due_ms

    async def _judge_batch(
        self, offset: int, end: int
    ) -> tuple[int, list[tuple[PendingMessage, CheckDecision]], int | None]:
        """Decide about the half messages starting at `offset`.

        Returns the number of half messages that are finished, the decisions to carry out, and the time of the
        next decision if the next half message must wait.
        """
        halves = await self._read(offset, min(_STEP_MESSAGES, end - offset))
        if not halves:
            return 0, [], self._parts.now_ms() + self._rules.again_ms
        judged: list[tuple[PendingMessage, CheckDecision]] = []
        size, now_ms = 0, self._parts.now_ms()
        for count, half in enumerate(halves):
            at = offset + count
            if at in self._busy:
                return count, judged, now_ms + self._rules.first_ms
            is_last = at + 1 >= end
            found = judge(
                half, self._ended, now_ms, self._rules, is_last=is_last, steps_ms=self._parts.writer.steps_ms
            )
            if found.step is CheckAction.WAIT:
                return count, judged, found.due_ms
            if found.step is not CheckAction.OVER and half is not None:
                size += len(half.message.body)
                if judged and size > _STEP_BYTES:
                    return count, judged, None
                judged.append((half, found))
        return len(halves), judged, None

    async def _carry_out(self, offset: int, judged: Sequence[tuple[PendingMessage, CheckDecision]]) -> None:
        """Carry out decisions and set the progress to `offset`, in one append."""
        for half, _ in judged:
            self._occupy(half.message.queue_offset)
        moved: dict[int, HalfPosition] = {}
        try:
            if any(found.step is CheckAction.GIVE_UP for _, found in judged):
                await self._parts.make_topic(CHECK_MAX_TOPIC)
            queued = [self._put_back(half, found) for half, found in judged]
            given_up = [half for half, found in judged if found.step is CheckAction.GIVE_UP]
            ended_ids = [await self._id_ended(half) for half in given_up]
            elements: list[Element] = [SystemOffset(HALF_TOPIC, 0, offset), *self._done_ops(offset)]
            elements += ended_ids
            done = await self._parts.committer.submit(PutRequest(queued=queued, elements=elements))
            for (half, found), place in zip(judged, done.places, strict=True):
                if found.step is not CheckAction.GIVE_UP:
                    position = HalfPosition(place.queue_offset, place.physical_offset)
                    moved[half.message.queue_offset] = position
                    self._note_move(half.message.queue_offset, position)
        finally:
            for half, _ in judged:
                self._free(half.message.queue_offset)
        for half, found in judged:
            if found.step is CheckAction.CHECK:
                self._check_producer(self._orphan(half, found, moved[half.message.queue_offset]))

    def _put_back(self, half: PendingMessage, found: CheckDecision) -> QueuedRecords:
        topic, changes = HALF_TOPIC, {SINCE: str(half.since_ms(self._parts.writer.steps_ms))}
        if found.step is CheckAction.GIVE_UP:
            topic, changes = CHECK_MAX_TOPIC, {}
        elif found.step is CheckAction.CHECK:
            changes[CHECK_TIMES] = str(found.checks)
        else:
            first = half.number(PREPARED_OFFSET, half.message.queue_offset)
            changes[PREPARED_OFFSET] = str(first)
        host, own = half.message.born_host, retry_fields(half.topic, half.properties)
        return self._parts.writer.records(
            topic, 0, [half.again(changes)], born_host=host, is_moved=True, own=own
        )

    def _orphan(self, half: PendingMessage, found: CheckDecision, place: HalfPosition) -> OrphanedHalf:
        """Describe a half message for its producer: with its own topic and queue, and its new position."""
        message = half.message
        record = encode(
            MessageRecord(
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

    # -- cached state ------------------------------------------------------------------------------------

    @property
    def _progress(self) -> int:
        """The offset before which all half messages are finished."""
        return self._parts.state.system_offset(HALF_TOPIC, 0)

    async def _read(self, offset: int, count: int) -> list[PendingMessage | None]:
        parts = self._parts

        def read() -> list[PendingMessage | None]:
            least, end = parts.files.bounds(HALF_TOPIC, 0)
            if not least <= offset < end:
                return []
            units = parts.files.units(HALF_TOPIC, 0, offset, min(count, end - offset))
            records = read_records(parts.reader, units)
            return [None if record is None else waiting(record) for record in records]

        found: list[PendingMessage | None] = await parts.run(read, "")
        return found

    async def _read_ops(self) -> None:
        """Read the op messages stored since the last call."""
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
        """Discard op messages whose half messages are all finished.

        Return the new read offset of their queue, if it has changed.
        """
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


def read_ops(parts: DeferredStoreParts, begin: int, count: int) -> list[list[int]]:
    """Return the offsets of half messages that each op message contains. Call from a reader thread."""
    units = parts.files.units(OP_TOPIC, 0, begin, count)
    found = []
    for record in read_records(parts.reader, units):
        found.append([] if record is None else offsets_of(decode(record).body))
    return found


def _position_of(half: PendingMessage) -> HalfPosition:
    return HalfPosition(half.message.queue_offset, half.message.physical_offset)


def _is_copy(copy: PendingMessage, half: PendingMessage) -> bool:
    """True if both are copies of the same half message.

    If a program starts another transaction with the same message object, the key is the same but the born
    timestamp differs.
    """
    one, other = copy.message, half.message
    return (copy.topic, one.born_timestamp, one.body) == (half.topic, other.born_timestamp, other.body)
