"""Stores delayed messages and half messages in commands, delivers them when due, and checks producers.

A deferred message ends exactly once: at its due time, at the end of its transaction, or when it is recalled.
The replicated state contains the messages that are still deferred, and the master, which is the only writer,
tracks the ends in progress. Memory contains only the next `_LISTED` delayed messages by due time. Due
messages are read from the log in batches of about `_MOVING_BYTES`, one batch at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from broker_adapter.api import OutgoingMessage
from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery_state.commands import (
    Defer,
    DeferOutcome,
    DeferredKind,
    EndDeferred,
    Ending,
    RecordCheck,
)
from broker_adapter.delivery_state.deferred_messages import DeferredMessage, LogPosition, Numbered
from broker_adapter.delivery_state.delay_index import FIRST_DUE, DelayedRow, DuePosition
from broker_adapter.delivery_state.duplicate_filter import DEFERRED, Position, SendIdentity
from broker_adapter.delivery_state.handles import deferred_handle, parse_deferred, parse_recall, recall_handle
from broker_adapter.delivery_state.records import CARRIED_OVERHEAD, STORED_ID_SIZE, STORED_IDS_OVERHEAD
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError, Busy, IllegalMessage, ReadFailed, Status
from broker_adapter.put.committer import Committer, PutRequest, RequestOutcome
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.put.record_writer import retry_fields
from broker_adapter.put.sender import EarlierSend, Sender, wait_with_timeout, with_id
from broker_adapter.scheduled.deferring import (
    DeferRequest,
    HalfName,
    OrphanedHalf,
    Resolution,
    StoredDelayed,
    StoredHalf,
    TransactionEnd,
    orphaned_half,
)
from broker_adapter.scheduled.timetable import Timetable
from broker_adapter.wire.host import NO_HOST, Host, known_host
from broker_adapter.wire.properties import PropertiesText, split_properties, text_of, with_property
from broker_adapter.wire.sys_flag import TRANSACTION_MASK
from dledger.infra.loops.turns import LARGE_BYTES, large_turns, wake_queue
from dledger.infra.quotas import fits

_log = structlog.get_logger(part="delivery")

# Property of a committed message that tells consumers its transaction id.
TRANSACTION_ID = "__transactionId__"
# Delay before another attempt to end a message.
_RETRY_MS = 1_000
# Maximum number of messages examined and processed per loop step: many may be due at the same time.
_EXAMINED, _PROCESSED = 2_000, 100
# A message is listed at least this long before its due time, unless `_LISTED` others are listed.
_AHEAD_MS = 300_000
# Maximum sleep, because cluster time may step forward.
_LONGEST_MS = 1_000
_LISTED = 20_000
# Delayed messages listed per lock acquisition.
_PAGE = 500
# Maximum bytes of delayed messages on their way from the log to their queues.
_MOVING_BYTES = 8 << 20
# Delay before another attempt to read an unreadable message, which may be repaired meanwhile.
_UNREADABLE_MS = 60_000
_NEVER = 1 << 62

# Bytes added to the command of a message when it is carried, and for its id.
_COMMAND_OVERHEAD = CARRIED_OVERHEAD + STORED_IDS_OVERHEAD + STORED_ID_SIZE
# Reads the commands at log positions, off the event loop.
ReadCommands = Callable[[Sequence[LogPosition]], Awaitable[list[bytes]]]


class _Deferral(NamedTuple):
    """A deferred message: its number, and whether an earlier send stored it (`is_repeated`)."""

    deferred_id: int
    is_repeated: bool
    put_status: Status | None = None


class DeferredDelivery:
    """Implements DeferredStore with delivery commands."""

    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        writer: MessageWriter,
        sender: Sender,
        *,
        read: ReadCommands,
        run: Callable[[Callable[[], Any], str], Awaitable[Any]],
        now_ms: Callable[[], int],
        settings: DeliverySettings,
        broker_name: str,  # in recall handles
    ) -> None:
        """`now_ms` returns cluster time. `run` runs a blocking call on a reader thread."""
        self._broker = broker_name
        self._read = read
        self._run = run
        self._state = state
        self._committer = committer
        self._writer = writer
        self._sender = sender
        self._now_ms = now_ms
        self._settings = settings
        self._check_producer: Callable[[OrphanedHalf], None] = lambda _: None
        self._is_leading = False
        self._due = Timetable()
        self._unlisted: list[int] = []  # numbers of whole messages not listed yet
        self._listed: DuePosition = FIRST_DUE  # delayed messages up to this position are listed
        self._watched_until_ms = FIRST_DUE[0]  # new messages that are due later will be listed
        self._listing: asyncio.Task[None] | None = None
        self._list_not_before_ms = 0
        self._ending: dict[int, PutRequest] = {}
        self._ending_bytes = 0
        self._moving: asyncio.Task[None] | None = None
        self._not_before_ms = 0  # back-off after the committer was full
        self._checking: set[int] = set()  # messages whose checks are being appended
        # Appends in progress per client: bytes of halves, and number of delayed messages.
        self._coming_bytes, self._coming_delayed = Counter[bytes](), Counter[bytes]()
        self._timer: asyncio.TimerHandle | None = None

    def on_orphan(self, check: Callable[[OrphanedHalf], None]) -> None:
        self._check_producer = check

    def start(self) -> None:
        self._is_leading = True
        self._not_before_ms = self._list_not_before_ms = 0
        self._restart_listing()
        self._arm()

    def stop(self) -> None:
        self._is_leading = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._moving is not None:
            self._moving.cancel()
        self._moving = None
        if self._listing is not None:
            self._listing.cancel()
        self._listing = None
        self._restart_listing()
        self._unlisted.clear()
        self._ending.clear()
        self._ending_bytes = 0
        self._checking.clear()

    # -- storing messages --------------------------------------------------------------------------------

    async def delay(self, put: DeferRequest, deliver_at_ms: int, level: int) -> StoredDelayed:
        most = self._now_ms() + self._settings.max_delay_ms
        if deliver_at_ms > most:
            text = f"deliver_at_ms {deliver_at_ms} exceeds the maximum of {most}"
            raise IllegalMessage(Status.DELAY_TOO_LONG, text)
        identity = self._sender.identity(put.config.name, put.message_id, [put.message])
        defer = self._defer(DeferredKind.DELAYED, put, identity)._replace(due_ms=max(0, deliver_at_ms))
        found = await self._put(defer, identity, put.timeout_ms, put.born_host)
        handle = recall_handle(defer.topic, self._broker, defer.due_ms, defer.message_id, found.deferred_id)
        return StoredDelayed(handle, found.is_repeated, found.put_status)

    async def half(self, put: DeferRequest, client_id: str, check_after_ms: int) -> StoredHalf:
        most = self._settings.max_delay_ms
        if check_after_ms > most:
            text = f"check_after_ms {check_after_ms} exceeds the maximum of {most}"
            raise IllegalMessage(Status.DELAY_TOO_LONG, text)
        due_ms = self._now_ms() + (check_after_ms or self._settings.check_first_ms)
        identity = self._sender.identity(put.config.name, put.message_id, [put.message])
        defer = self._defer(DeferredKind.HALF, put, identity)._replace(due_ms=due_ms, client_id=client_id)
        found = await self._put(defer, identity, put.timeout_ms, put.born_host)
        handle = deferred_handle(defer.topic, found.deferred_id)
        number = max(0, found.deferred_id)  # identifies the half for clients that send no transaction id
        return StoredHalf(handle, found.is_repeated, 0, number, found.put_status)

    def _defer(self, kind: DeferredKind, put: DeferRequest, identity: SendIdentity | None) -> Defer:
        topic, message, message_id = put.config.name, put.message, put.message_id
        if message_id:
            message = with_id(message, message_id)
        host = known_host(put.born_host)
        defer = Defer(
            kind,
            topic,
            self._writer.queue_of(put.config, put.queue_id),
            0,
            b"",
            message_id,
            "",
            message.flag,
            message.sys_flag & ~TRANSACTION_MASK,
            identity.born_ms if identity else message.born_timestamp or self._now_ms(),
            b"" if host is NO_HOST else host.address + host.port.to_bytes(4, "big"),
            text_of(message.properties),
            message.body,
        )
        # Refuse a message now if it could not be stored in its queue later.
        outgoing, host = self._restored(0, defer)
        self._writer.records(defer.topic, defer.queue_id, [outgoing], born_host=host)
        return defer

    async def _put(
        self, defer: Defer, identity: SendIdentity | None, timeout_ms: int, born_host: str = ""
    ) -> _Deferral:
        if identity is not None:
            earlier = await self._earlier(identity, timeout_ms)
            if earlier is not None:
                self._sender.count_duplicate(defer.topic)
                put_status = await self._sender.put_status_of(earlier, timeout_ms)
                return _Deferral(_number_of_earlier(earlier), True, put_status)
        message = DeferredMessage.of(defer)
        size, client = len(message.command), message.client
        self._check_room(defer.kind, message)
        if size > (most := self._writer.max_command_bytes - _COMMAND_OVERHEAD):
            text = f"a delayed or half message of {size} bytes exceeds the command limit of {most} bytes"
            raise IllegalMessage(Status.BODY_TOO_LARGE, text)
        kept = 1 if defer.kind is DeferredKind.DELAYED else message.size
        coming = self._coming_delayed if defer.kind is DeferredKind.DELAYED else self._coming_bytes
        on_deferred = partial(self._on_deferred, defer, client, kept, coming)
        request = self._sender.request(identity, elements=[defer], released=on_deferred, born_host=born_host)
        coming[client] += kept
        done = await wait_with_timeout(timeout_ms, asyncio.shield(request.done))
        return _Deferral(_number_of(done), False, done.put_status)

    async def _earlier(self, identity: SendIdentity, timeout_ms: int) -> EarlierSend | Position | None:
        """Record the attempt, and return `Sender.outcome` once no rollback or recall is in progress."""
        # Clients may send a message again before they know that its transaction has ended.
        while (earlier := await self._sender.outcome(identity, timeout_ms)) is not None:
            number = _number_of_earlier(earlier)
            if (request := self._ending.get(number)) is not None and not request.queued:
                await wait_with_timeout(timeout_ms, asyncio.shield(request.done))
                continue
            place = Position(DEFERRED, number)
            if number < 0 or await self._sender.record_attempt(identity, earlier, place, timeout_ms):
                break
        return earlier

    def _check_room(self, kind: DeferredKind, message: DeferredMessage) -> None:
        """Raise Busy if the message exceeds the quota of its client or the total limit."""
        deferred, client, settings = self._state.deferred, message.client, self._settings
        if kind is DeferredKind.DELAYED:
            own = deferred.delayed_of(client) + self._coming_delayed[client]
            used = deferred.delayed_count + self._coming_delayed.total()
            if not fits(1, own, used, settings.max_delayed):
                text = f"{used} delayed messages are pending, {own} from this client"
                raise Busy(Status.TOO_MANY_HELD_MESSAGES, text)
            return
        own = deferred.bytes_of(client) + self._coming_bytes[client]
        used = deferred.bytes + self._coming_bytes.total()
        if not fits(message.size, own, used, settings.max_held_bytes):
            text = f"{used} bytes of half messages are pending, {own} from this client"
            raise Busy(Status.TOO_MANY_HELD_MESSAGES, text)

    def _on_deferred(
        self, defer: Defer, client: bytes, kept: int, coming: Counter[bytes], request: PutRequest
    ) -> None:
        """Update the counts and watch the message. Runs even if the sender has stopped waiting."""
        coming[client] -= kept
        if not coming[client]:
            del coming[client]
        is_watched = defer.kind is DeferredKind.HALF or defer.due_ms <= self._watched_until_ms
        if self._is_leading and request.applied is not None and is_watched:
            self._watch(defer.due_ms, _number_of(request.applied))

    # -- ending messages ---------------------------------------------------------------------------------

    async def recall(self, topic: str, handle: str, timeout_ms: int) -> str:
        deferred_id = parse_recall(topic, handle)
        message = None if deferred_id is None else await self._find(topic, deferred_id, timeout_ms)
        if deferred_id is None or message is None or message.kind is not DeferredKind.DELAYED:
            raise _no_such_delayed()
        defer = await self._read_one(deferred_id, message)
        if await self._find(topic, deferred_id, timeout_ms) is None:  # it has ended meanwhile
            raise _no_such_delayed()
        done = await wait_with_timeout(
            timeout_ms, asyncio.shield(self._end_message(deferred_id, defer, Ending.RECALLED))
        )
        if not done.outcomes[0]:
            raise _no_such_delayed()
        return defer.message_id

    async def half_at(self, queue_offset: int, physical_offset: int) -> HalfName | None:
        """Find a half message by `physical_offset`, its number. It has no queue offset."""
        if queue_offset:
            return None
        with self._state.lock:
            topic = self._state.deferred.topic_of_half(physical_offset)
        return HalfName(topic, deferred_handle(topic, physical_offset)) if topic else None

    async def end_transaction(self, end: TransactionEnd, timeout_ms: int) -> None:
        topic, transaction_id, resolution, _ = end
        deferred_id = parse_deferred(topic, transaction_id)
        message = None if deferred_id is None else await self._find(topic, deferred_id, timeout_ms)
        wanted = Ending.COMMITTED if resolution is Resolution.COMMIT else Ending.ROLLED_BACK
        if deferred_id is None or message is None or message.kind is not DeferredKind.HALF:
            ending = None if deferred_id is None else self._state.deferred.ending_of_half(topic, deferred_id)
            if ending is None or (resolution is not Resolution.UNKNOWN and ending is not wanted):
                raise end.unknown(ending.name if ending else "is unknown")
            return
        defer = message.defer()
        end.check_group(PropertiesText(defer.properties))
        if resolution is Resolution.UNKNOWN:
            return
        done = await wait_with_timeout(
            timeout_ms, asyncio.shield(self._end_message(deferred_id, defer, wanted))
        )
        if not done.outcomes[0]:
            raise end.unknown("is over")

    async def _find(self, topic: str, deferred_id: int, timeout_ms: int) -> DeferredMessage | None:
        """Return a message once no operation that ends it is in progress.

        Checks the topic, because a handle may be forged.
        """
        while (request := self._ending.get(deferred_id)) is not None:
            await wait_with_timeout(timeout_ms, asyncio.shield(request.done))
        with self._state.lock:
            is_in_memory = self._state.deferred.is_in_memory(deferred_id)
        if not is_in_memory:
            await self._run(partial(self._fetch, deferred_id), "")
        with self._state.lock:
            message = self._state.deferred.get(deferred_id)
        return message if message is not None and message.topic == topic else None

    def _fetch(self, deferred_id: int) -> None:
        """Call from a reader thread."""
        with self._state.lock:
            self._state.deferred.fetch(deferred_id)

    async def whole(self, messages: Sequence[Numbered]) -> list[Defer]:
        """Read complete messages from the log.

        Raises ReadFailed or StoredDataDamaged if a message is unreadable or was carried to another log
        position. The caller must then look it up again.
        """
        places = [one.place for _, one in messages if one.is_in_log]
        commands = iter(await self._read(places) if places else [])
        return [one.defer(next(commands) if one.is_in_log else b"") for _, one in messages]

    async def _read_one(self, deferred_id: int, message: DeferredMessage) -> Defer:
        """Read one message like `whole`. If the message was carried, read it at its current log position."""
        while True:
            try:
                return (await self.whole([(deferred_id, message)]))[0]
            except BrokerError:
                with self._state.lock:
                    current = self._state.deferred.get(deferred_id)
                if current is None or current.place == message.place:
                    raise
                message = current

    def _end_message(self, deferred_id: int, defer: Defer, ending: Ending) -> asyncio.Future[RequestOutcome]:
        """End a message. If it is to be delivered, the same append stores it in its queue."""
        queued = []
        if ending in (Ending.MOVED, Ending.COMMITTED):
            outgoing, host = self._restored(deferred_id, defer)
            queue_id = self._writer.topics.fitting_queue(defer.topic, defer.queue_id)
            own = retry_fields(defer.topic, split_properties(text_of(outgoing.properties)))
            queued = [
                self._writer.records(
                    defer.topic, queue_id, [outgoing], born_host=host, is_moved=True, own=own
                )
            ]
        request = PutRequest(
            queued=queued,
            elements=[EndDeferred(deferred_id, ending)],
            release=partial(self._released, deferred_id),
            is_due=lambda: deferred_id in self._state.deferred,
        )
        self._committer.submit(request)
        self._ending[deferred_id] = request
        self._ending_bytes += request.size
        return request.done

    def _released(self, deferred_id: int) -> None:
        was_full = self._is_full()
        if (request := self._ending.pop(deferred_id, None)) is not None:
            self._ending_bytes -= request.size
        with self._state.lock:
            message = self._state.deferred.get(deferred_id)
        self._watch_again(deferred_id, message)
        if was_full and not self._is_full():
            self._arm()

    def _is_full(self) -> bool:
        """True if no further message may be moved at the moment."""
        return self._ending_bytes >= _MOVING_BYTES

    def _restored(self, deferred_id: int, defer: Defer) -> tuple[OutgoingMessage, Host]:
        """Return the message for its queue, and its born host. Raises IllegalMessage if it is too large."""
        properties = PropertiesText(defer.properties)
        if defer.kind is DeferredKind.HALF:
            properties = with_property(properties, TRANSACTION_ID, deferred_handle(defer.topic, deferred_id))
        host = (
            Host(defer.born_host[:-4], int.from_bytes(defer.born_host[-4:], "big"))
            if defer.born_host
            else NO_HOST
        )
        sys_flag = defer.sys_flag & ~TRANSACTION_MASK
        return OutgoingMessage(defer.body, properties, defer.flag, sys_flag, defer.born_ms), host

    # -- time --------------------------------------------------------------------------------------------

    def _watch(self, due_ms: int, deferred_id: int) -> None:
        self._due.put(deferred_id, due_ms)
        if self._delayed_listed() > 2 * _LISTED:
            self._restart_listing()
            self._arm()
        elif self._due.first() == due_ms:
            self._arm()

    def _watch_again(self, deferred_id: int, message: DeferredMessage | None) -> None:
        """Watch a message again after an operation on it. `message`: None if it is no longer deferred."""
        if message is None or not self._is_leading:
            return
        if not message.is_in_log or message.due_ms <= self._watched_until_ms:
            self._watch(max(message.due_ms, self._now_ms() + _RETRY_MS), deferred_id)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._moving is not None or self._is_full():
            return  # the timer is set when the operation in progress ends
        if self._is_leading:
            first_ms = self._now_ms() if self._unlisted else self._next_list_ms()
            if (due_ms := self._due.first()) is not None:
                first_ms = min(first_ms, due_ms)
            first_ms = min(first_ms, self._now_ms() + _LONGEST_MS)
            delay = max(0, max(first_ms, self._not_before_ms) - self._now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._process_due)

    def _process_due(self) -> None:
        """Process some due messages. The next step of the event loop processes more."""
        self._timer = None
        if self._moving is not None or self._is_full():
            return  # called again when the operation in progress ends
        self._list_some()
        now_ms, processed, size = self._now_ms(), 0, 0
        moving: list[Numbered] = []
        for _ in range(_EXAMINED):
            deferred_id = self._due.take_due(now_ms)
            if deferred_id is None:
                break
            message = self._free(deferred_id)
            if message is None:
                continue  # it has ended, or an operation is in progress, after which it is watched again
            if message.due_ms > now_ms:
                self._due.put(deferred_id, message.due_ms)
                continue
            processed += 1
            if message.is_in_log:
                moving.append((deferred_id, message))
                size += message.place.size
            elif not self._try_to_process(deferred_id, message, now_ms):
                break
            if processed >= _PROCESSED or size >= _MOVING_BYTES:
                break
        if moving:
            self._moving = asyncio.get_running_loop().create_task(self._move(moving), name="delayed-messages")
        self._arm()

    def _free(self, deferred_id: int) -> DeferredMessage | None:
        """Return a deferred message, or None if it has ended or an operation on it is in progress."""
        with self._state.lock:
            message = self._state.deferred.get(deferred_id)
        return None if deferred_id in self._ending or deferred_id in self._checking else message

    async def _move(self, messages: list[Numbered]) -> None:
        """Read due messages from the log and deliver them.

        An unreadable message does not prevent the delivery of the others.
        """
        try:
            await self._try_to_move(messages)
        finally:
            if self._is_leading and self._moving is asyncio.current_task():
                self._moving = None
                self._arm()

    async def _try_to_move(self, messages: list[Numbered]) -> None:
        deferred_id, message = messages[0]
        try:
            is_one = len(messages) == 1
            deferred = [await self._read_one(deferred_id, message)] if is_one else await self.whole(messages)
        except Exception as error:
            if len(messages) > 1:
                for one in messages:
                    await self._try_to_move([one])
                return
            mistake = None if isinstance(error, BrokerError) else error
            _log.error(
                "a delayed message cannot be read", number=deferred_id, reason=str(error), exc_info=mistake
            )
            self._due.put(deferred_id, self._now_ms() + _UNREADABLE_MS)
            return
        for (deferred_id, message), defer in zip(messages, deferred, strict=True):
            if self._free(deferred_id) is None:
                continue
            # the previous message was refused because the committer is full
            if self._now_ms() < self._not_before_ms:
                self._due.put(deferred_id, message.due_ms)
            else:
                self._try_to_process(deferred_id, message, self._now_ms(), defer)

    def _restart_listing(self) -> None:
        """Restart listing from the earliest due time."""
        self._due.clear()
        self._listed = FIRST_DUE
        if self._listing is None:
            self._watched_until_ms = FIRST_DUE[0]
        with self._state.lock:
            self._state.deferred.clear_near()
            self._unlisted = self._state.deferred.numbers_of_whole()

    def _delayed_listed(self) -> int:
        """The approximate number of listed delayed messages. The list also contains whole messages."""
        whole = self._state.deferred.whole_count - len(self._unlisted)
        return max(0, len(self._due) - whole)

    def _next_list_ms(self) -> int:
        """Return the time at which delayed messages are listed next."""
        if self._listing is not None or self._delayed_listed() >= _LISTED // 2:
            return _NEVER
        return max(self._listed[0] - _AHEAD_MS, self._list_not_before_ms)

    def _list_some(self) -> None:
        numbers = self._unlisted[-_EXAMINED:]
        del self._unlisted[-_EXAMINED:]
        with self._state.lock:
            found = [(number, self._state.deferred.get(number)) for number in numbers]
        for number, message in found:
            if message is not None and number not in self._ending:
                self._due.put(number, message.due_ms)
        if self._next_list_ms() <= self._now_ms():
            last_due_ms = self._watched_until_ms = self._now_ms() + 2 * _AHEAD_MS
            listing = self._list(last_due_ms)
            self._listing = asyncio.get_running_loop().create_task(listing, name="list-delayed-messages")

    async def _list(self, last_due_ms: int) -> None:
        """List the next delayed messages.

        In the meantime, each new message that is due by `last_due_ms` is watched.
        """
        try:
            while self._delayed_listed() < _LISTED and self._listed[0] < last_due_ms:
                after = self._listed
                rows, listed = await self._run(partial(self._page, after, last_due_ms), "")
                if self._listed != after:  # the listing was restarted
                    listed = self._listed
                for row in rows:
                    if row.number not in self._ending:
                        self._due.put(row.number, row.due_ms)
                self._listed = listed
        except Exception as error:  # a disk error that may be temporary
            _log.error("delayed messages cannot be listed", reason=str(error), exc_info=error)
            self._list_not_before_ms = self._now_ms() + _RETRY_MS
        finally:
            if self._is_leading and self._listing is asyncio.current_task():
                self._watched_until_ms = self._listed[0]
                self._listing = None
                self._arm()

    def _page(self, after: DuePosition, last_due_ms: int) -> tuple[list[DelayedRow], DuePosition]:
        """Call from a reader thread."""
        deferred = self._state.deferred
        deferred.warm(after, last_due_ms, _PAGE)
        with self._state.lock:
            return deferred.due_page(after, last_due_ms, _PAGE)

    def _try_to_process(
        self, deferred_id: int, message: DeferredMessage, now_ms: int, defer: Defer | None = None
    ) -> bool:
        """Process a due message. Return False if the others must wait. `defer`: the complete message."""
        try:
            self._process(deferred_id, message, now_ms, defer)
        except Exception as error:  # an error affects this message only
            mistake = None if isinstance(error, BrokerError) else error
            reason = str(error)
            _log.warning(
                "could not end a deferred message", number=deferred_id, reason=reason, exc_info=mistake
            )
            self._due.put(deferred_id, now_ms + _RETRY_MS)
            if isinstance(error, Busy):  # the others would be refused as well
                self._not_before_ms = now_ms + _RETRY_MS
                return False
        return True

    def _process(self, deferred_id: int, message: DeferredMessage, now_ms: int, defer: Defer | None) -> None:
        """Deliver a delayed message. Record a check of a half message, or roll it back after the last."""
        if message.kind is DeferredKind.DELAYED:
            self._end_message(deferred_id, defer or message.defer(), Ending.MOVED)
        elif message.checks >= self._settings.max_checks:
            self._end_message(deferred_id, message.defer(), Ending.ROLLED_BACK)
        else:
            next_ms = now_ms + self._settings.check_again_ms
            request = PutRequest(
                elements=[RecordCheck(deferred_id, next_ms)], release=partial(self._checked, deferred_id)
            )
            self._committer.submit(request)
            self._checking.add(deferred_id)
            request.done.add_done_callback(partial(self._schedule_check, deferred_id, message))

    def _checked(self, deferred_id: int) -> None:
        self._checking.discard(deferred_id)
        with self._state.lock:
            message = self._state.deferred.get(deferred_id)
        self._watch_again(deferred_id, message)

    def _schedule_check(
        self, deferred_id: int, message: DeferredMessage, done: asyncio.Future[RequestOutcome]
    ) -> None:
        """Schedule the check in its own loop step, because many may be due and each copies its message."""
        if done.cancelled() or done.exception() is not None or not done.result().outcomes[0]:
            return
        turns = large_turns() if message.size >= LARGE_BYTES else wake_queue()
        turns.add("orphans", partial(self._send_check, deferred_id, message))

    def _send_check(self, deferred_id: int, message: DeferredMessage) -> None:
        defer = message.defer()
        outgoing, host = self._restored(deferred_id, defer)
        self._check_producer(orphaned_half(deferred_id, defer, outgoing, host, message.checks + 1))


def _no_such_delayed() -> ReadFailed:
    return ReadFailed(Status.DELAYED_UNKNOWN, "the delayed message does not exist or has ended")


def _number_of_earlier(earlier: EarlierSend | Position) -> int:
    """Return the number of an earlier message, or -1 if it was neither a delayed nor a half message."""
    if isinstance(earlier, EarlierSend):
        return _number_of(earlier.done)
    return earlier.queue_offset if earlier.queue_id == DEFERRED else -1


def _number_of(done: RequestOutcome) -> int:
    """Return the number of the message that a request has deferred, or -1 if it deferred none."""
    deferred = done.outcomes[0] if done.outcomes else None
    return deferred.deferred_id if isinstance(deferred, DeferOutcome) else -1
