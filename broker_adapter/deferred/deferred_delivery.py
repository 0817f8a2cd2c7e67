"""Delayed messages and halves of transactions on the master: taken in, moved when they are due, asked about.

The state says whether a message is still deferred. The master, which alone writes, knows which ends are under
way. So a message is ended once, whoever is first: its time, its transaction, a recall. Of delayed messages
the next `_LISTED` by due time are listed in memory, no others. They are read from the log when they are due,
many at once, and `_MOVING_BYTES` of them at most are in memory then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from broker_adapter.api import OutgoingMessage
from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.config.settings import DeliverySettings
from broker_adapter.deferred.deferring import ToDefer
from broker_adapter.deferred.timetable import Timetable
from broker_adapter.errors import BrokerError, Busy, IllegalMessage, ReadFailed, Status
from broker_adapter.format.host import NO_HOST, Host, known_host
from broker_adapter.format.message import Message, encode
from broker_adapter.format.properties import PropertiesText, text_of, with_property
from broker_adapter.format.sys_flag import TRANSACTION_MASK
from broker_adapter.pop.api import Delayed, Half, OrphanedHalf, Resolution
from broker_adapter.pop.commands import Checked, Defer, Deferred, DeferredKind, End, Ending
from broker_adapter.pop.committer import Committer, Done, Request
from broker_adapter.pop.deferred_messages import DeferredMessage, LogPosition, Numbered
from broker_adapter.pop.delay_index import FIRST_DUE, DelayedRow, DuePosition
from broker_adapter.pop.duplicate_filter import Position
from broker_adapter.pop.handles import deferred_handle, id_digest, parse_deferred
from broker_adapter.pop.records import CARRIED_OVERHEAD
from broker_adapter.pop.sender import Sender, with_id, within
from broker_adapter.pop.state import DeliveryState
from broker_adapter.shares import fits
from dledger.platform import LARGE_BYTES, large_turns, wake_queue

_log = structlog.get_logger(part="delivery")

#: The property of a committed message, by which consumers know its transaction.
TRANSACTION_ID = "__transactionId__"
#: What could not be moved is tried again after this.
_RETRY_MS = 1_000
#: In one step of the loop, so many are looked at, and so many met: a client decides how many are due at once.
_LOOKED_AT, _MET = 2_000, 100
#: What is due is listed so long before, at least; but only so many delayed messages, more or less.
_AHEAD_MS = 300_000
_LISTED = 20_000
#: Delayed messages that are listed under the lock at once.
_PAGE = 500
#: Of delayed messages that are on their way from the log into their queues.
_MOVING_BYTES = 8 << 20
#: What cannot be read is tried again after this: it may be repaired.
_UNREADABLE_MS = 60_000
_NEVER = 1 << 62

#: Reads the commands in entries at such places, off the loop.
ReadCommands = Callable[[Sequence[LogPosition]], Awaitable[list[bytes]]]


class _Deferral(NamedTuple):
    """Of a message that was put. `deferred_id`: its number; `is_repeated`: it was there before."""

    deferred_id: int
    is_repeated: bool
    shortfall: Status | None = None


class DeferredDelivery:
    """Implements Deferring."""

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
    ) -> None:
        """`now_ms` is cluster time. `run`: what blocks, on a reader's thread."""
        self._read = read
        self._run = run
        self._state = state
        self._committer = committer
        self._writer = writer
        self._sender = sender
        self._now_ms = now_ms
        self._settings = settings
        self._ask: Callable[[OrphanedHalf], None] = lambda _: None
        self._is_leading = False
        self._due = Timetable()
        self._unlisted: list[int] = []  # numbers of whole messages that have still to be listed
        self._listed: DuePosition = FIRST_DUE  # delayed messages up to here are listed
        self._watched_until_ms = FIRST_DUE[0]  # new ones that are due later will be listed
        self._listing: asyncio.Task[None] | None = None
        self._list_not_before_ms = 0
        self._ending: dict[int, Request] = {}
        self._ending_bytes = 0
        self._moving: asyncio.Task[None] | None = None
        self._not_before_ms = 0  # nothing is met before: there was no room for it
        self._checking: set[int] = set()  # a check is on its way into the log
        # By client, of what is on its way into the state: bytes of halves, and delayed messages.
        self._coming_bytes, self._coming_delayed = Counter[bytes](), Counter[bytes]()
        self._timer: asyncio.TimerHandle | None = None

    def on_orphan(self, ask: Callable[[OrphanedHalf], None]) -> None:
        self._ask = ask

    def start(self) -> None:
        self._is_leading = True
        self._not_before_ms = self._list_not_before_ms = 0
        self._list_anew()
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
        self._list_anew()
        self._unlisted.clear()
        self._ending.clear()
        self._ending_bytes = 0
        self._checking.clear()

    # -- taking in ----------------------------------------------------------------------------------------

    async def delay(self, put: ToDefer, deliver_at_ms: int, level: int) -> Delayed:
        most = self._now_ms() + self._settings.max_delay_ms
        if deliver_at_ms > most:
            text = f"deliver_at_ms {deliver_at_ms} is after {most}, the latest that is taken"
            raise IllegalMessage(Status.DELAY_TOO_LONG, text)
        defer = self._defer(DeferredKind.DELAYED, put)._replace(due_ms=max(0, deliver_at_ms))
        found = await self._put(defer, put.timeout_ms)
        return Delayed(deferred_handle(defer.topic, found.deferred_id), found.is_repeated, found.shortfall)

    async def half(self, put: ToDefer, client_id: str, check_after_ms: int) -> Half:
        most = self._settings.max_delay_ms
        if check_after_ms > most:
            text = f"check_after_ms {check_after_ms} is more than {most}, the longest that is taken"
            raise IllegalMessage(Status.DELAY_TOO_LONG, text)
        due_ms = self._now_ms() + (check_after_ms or self._settings.check_first_ms)
        defer = self._defer(DeferredKind.HALF, put)._replace(due_ms=due_ms, client_id=client_id)
        found = await self._put(defer, put.timeout_ms)
        handle = deferred_handle(defer.topic, found.deferred_id)
        return Half(handle, found.is_repeated, shortfall=found.shortfall)

    def _defer(self, kind: DeferredKind, put: ToDefer) -> Defer:
        topic, message, message_id = put.config.name, put.message, put.message_id
        if message_id:
            message = with_id(message, message_id)
        host = known_host(put.born_host)
        defer = Defer(
            kind,
            topic,
            self._writer.queue_of(put.config, put.queue_id),
            0,
            id_digest(topic, message_id) if message_id else b"",
            message_id,
            "",
            message.flag,
            message.sys_flag & ~TRANSACTION_MASK,
            message.born_timestamp or self._now_ms(),
            b"" if host is NO_HOST else host.address + host.port.to_bytes(4, "big"),
            text_of(message.properties),
            message.body,
        )
        # What could not be put into its queue later is refused now.
        outgoing, host = self._moved(0, defer)
        self._writer.records(defer.topic, defer.queue_id, [outgoing], born_host=host)
        return defer

    async def _put(self, defer: Defer, timeout_ms: int) -> _Deferral:
        if defer.digest:
            first = await self._sender.outcome(defer.topic, defer.message_id, timeout_ms)
            if first is not None:
                shortfall = await self._sender.shortfall_of(first, timeout_ms)
                if not isinstance(first, Position):
                    return _Deferral(_number_of(first.done), True, shortfall)
                return _Deferral(first.queue_offset if first.queue_id == -1 else -1, True, shortfall)
        message = DeferredMessage.of(defer)
        size, client = len(message.command), message.client
        self._check_room(defer.kind, message)
        if size > (most := self._writer.max_command_bytes - CARRIED_OVERHEAD):
            text = f"a delayed or half message of {size} bytes, more than the {most} of a command"
            raise IllegalMessage(Status.BODY_TOO_LARGE, text)
        kept = 1 if defer.kind is DeferredKind.DELAYED else message.size
        coming = self._coming_delayed if defer.kind is DeferredKind.DELAYED else self._coming_bytes
        taken = partial(self._taken, defer, client, kept, coming)
        request = self._sender.request(defer.digest, elements=[defer], released=taken)
        coming[client] += kept
        done = await within(timeout_ms, asyncio.shield(request.done))
        return _Deferral(_number_of(done), False, done.shortfall)

    def _check_room(self, kind: DeferredKind, message: DeferredMessage) -> None:
        """Busy."""
        deferred, client, settings = self._state.deferred, message.client, self._settings
        if kind is DeferredKind.DELAYED:
            own = deferred.delayed_of(client) + self._coming_delayed[client]
            used = deferred.delayed_count + self._coming_delayed.total()
            if not fits(1, own, used, settings.max_delayed):
                text = f"{used} delayed messages wait already, {own} of them of this client"
                raise Busy(Status.TOO_MANY_HELD_MESSAGES, text)
            return
        own = deferred.bytes_of(client) + self._coming_bytes[client]
        used = deferred.bytes + self._coming_bytes.total()
        if not fits(message.size, own, used, settings.max_held_bytes):
            text = f"{used} bytes of half messages are kept already, {own} of them of this client"
            raise Busy(Status.TOO_MANY_HELD_MESSAGES, text)

    def _taken(
        self, defer: Defer, client: bytes, kept: int, coming: Counter[bytes], request: Request
    ) -> None:
        """Also if whoever sent it was told that it is in doubt."""
        coming[client] -= kept
        if not coming[client]:
            del coming[client]
        is_watched = defer.kind is DeferredKind.HALF or defer.due_ms <= self._watched_until_ms
        if self._is_leading and request.applied is not None and is_watched:
            self._watch(defer.due_ms, _number_of(request.applied))

    # -- ending -------------------------------------------------------------------------------------------

    async def recall(self, topic: str, handle: str, timeout_ms: int) -> str:
        deferred_id = parse_deferred(topic, handle)
        message = None if deferred_id is None else await self._find(topic, deferred_id, timeout_ms)
        if deferred_id is None or message is None or message.kind is not DeferredKind.DELAYED:
            raise _no_such_delayed()
        defer = await self._read_one(deferred_id, message)
        if await self._find(topic, deferred_id, timeout_ms) is None:  # it ended meanwhile
            raise _no_such_delayed()
        done = await within(timeout_ms, asyncio.shield(self._end(deferred_id, defer, Ending.RECALLED)))
        if not done.outcomes[0]:
            raise _no_such_delayed()
        return defer.message_id

    async def end_transaction(
        self, topic: str, transaction_id: str, resolution: Resolution, timeout_ms: int
    ) -> None:
        deferred_id = parse_deferred(topic, transaction_id)
        message = None if deferred_id is None else await self._find(topic, deferred_id, timeout_ms)
        wanted = Ending.COMMITTED if resolution is Resolution.COMMIT else Ending.ROLLED_BACK
        if deferred_id is None or message is None or message.kind is not DeferredKind.HALF:
            ending = None if deferred_id is None else self._state.deferred.ending_of_half(topic, deferred_id)
            if ending is None or (resolution is not Resolution.UNKNOWN and ending is not wanted):
                text = f"transaction {transaction_id[:64]!r}: {ending.name if ending else 'unknown'}"
                raise ReadFailed(Status.TRANSACTION_UNKNOWN, text)
            return
        if resolution is Resolution.UNKNOWN:
            return
        done = await within(timeout_ms, asyncio.shield(self._end(deferred_id, message.defer(), wanted)))
        if not done.outcomes[0]:
            raise ReadFailed(Status.TRANSACTION_UNKNOWN, f"transaction {transaction_id[:64]!r} is over")

    async def _find(self, topic: str, deferred_id: int, timeout_ms: int) -> DeferredMessage | None:
        """A message that nothing is under way for. Of this topic: a handle may be made up."""
        while (request := self._ending.get(deferred_id)) is not None:
            await within(timeout_ms, asyncio.shield(request.done))
        with self._state.lock:
            is_in_memory = self._state.deferred.is_in_memory(deferred_id)
        if not is_in_memory:
            await self._run(partial(self._fetch, deferred_id), "")
        with self._state.lock:
            message = self._state.deferred.get(deferred_id)
        return message if message is not None and message.topic == topic else None

    def _fetch(self, deferred_id: int) -> None:
        """On a reader's thread."""
        with self._state.lock:
            self._state.deferred.fetch(deferred_id)

    async def whole(self, messages: Sequence[Numbered]) -> list[Defer]:
        """Messages as they were sent. ReadFailed, StoredDataDamaged: one of them cannot be read; or it is
        somewhere else in the log by now, and should be looked up again."""
        places = [one.place for _, one in messages if one.is_in_log]
        commands = iter(await self._read(places) if places else [])
        return [one.defer(next(commands) if one.is_in_log else b"") for _, one in messages]

    async def _read_one(self, deferred_id: int, message: DeferredMessage) -> Defer:
        """As `whole`, wherever the log has it by now."""
        while True:
            try:
                return (await self.whole([(deferred_id, message)]))[0]
            except BrokerError:
                with self._state.lock:
                    current = self._state.deferred.get(deferred_id)
                if current is None or current.place == message.place:
                    raise
                message = current

    def _end(self, deferred_id: int, defer: Defer, ending: Ending) -> asyncio.Future[Done]:
        """In one append: its end, and the message in its queue if that is what the end means."""
        queued = []
        if ending in (Ending.MOVED, Ending.COMMITTED):
            outgoing, host = self._moved(deferred_id, defer)
            queue_id = self._writer.topics.fitting_queue(defer.topic, defer.queue_id)
            queued = [self._writer.records(defer.topic, queue_id, [outgoing], born_host=host, is_moved=True)]
        request = Request(
            queued=queued,
            elements=[End(deferred_id, ending)],
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
        """There is enough on its way into queues."""
        return self._ending_bytes >= _MOVING_BYTES

    def _moved(self, deferred_id: int, defer: Defer) -> tuple[OutgoingMessage, Host]:
        """The message for its queue, and its host. IllegalMessage if no record has room for it."""
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

    # -- time ---------------------------------------------------------------------------------------------

    def _watch(self, due_ms: int, deferred_id: int) -> None:
        self._due.put(deferred_id, due_ms)
        if self._delayed_listed() > 2 * _LISTED:
            self._list_anew()
            self._arm()
        elif self._due.first() == due_ms:
            self._arm()

    def _watch_again(self, deferred_id: int, message: DeferredMessage | None) -> None:
        """Nothing is under way any more for what may still be deferred."""
        if message is None or not self._is_leading:
            return
        if not message.is_in_log or message.due_ms <= self._watched_until_ms:
            self._watch(max(message.due_ms, self._now_ms() + _RETRY_MS), deferred_id)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._moving is not None or self._is_full():
            return  # what is under way arms it
        if self._is_leading:
            first_ms = self._now_ms() if self._unlisted else self._next_list_ms()
            if (due_ms := self._due.first()) is not None:
                first_ms = min(first_ms, due_ms)
            first_ms = min(first_ms, self._now_ms() + _AHEAD_MS)
            delay = max(0, max(first_ms, self._not_before_ms) - self._now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        """At some of what is due; the next step looks at the rest."""
        self._timer = None
        if self._moving is not None or self._is_full():
            return  # what is under way looks again
        self._list_some()
        now_ms, met, size = self._now_ms(), 0, 0
        moving: list[Numbered] = []
        for _ in range(_LOOKED_AT):
            deferred_id = self._due.take_due(now_ms)
            if deferred_id is None:
                break
            message = self._free(deferred_id)
            if message is None:
                continue  # it ends otherwise, or is watched again if it does not
            if message.due_ms > now_ms:
                self._due.put(deferred_id, message.due_ms)
                continue
            met += 1
            if message.is_in_log:
                moving.append((deferred_id, message))
                size += message.place.size
            elif not self._try_to_meet(deferred_id, message, now_ms):
                break
            if met >= _MET or size >= _MOVING_BYTES:
                break
        if moving:
            self._moving = asyncio.get_running_loop().create_task(self._move(moving), name="delayed-messages")
        self._arm()

    def _free(self, deferred_id: int) -> DeferredMessage | None:
        """A deferred message that nothing is under way for."""
        with self._state.lock:
            message = self._state.deferred.get(deferred_id)
        return None if deferred_id in self._ending or deferred_id in self._checking else message

    async def _move(self, messages: list[Numbered]) -> None:
        """Those that are due, out of the log. One that cannot be read holds up none of the others."""
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
            if self._now_ms() < self._not_before_ms:  # there was no room for the one before it
                self._due.put(deferred_id, message.due_ms)
            else:
                self._try_to_meet(deferred_id, message, self._now_ms(), defer)

    def _list_anew(self) -> None:
        """Forget what is listed, and list it again: first what is due first."""
        self._due.clear()
        self._listed = FIRST_DUE
        if self._listing is None:
            self._watched_until_ms = FIRST_DUE[0]
        with self._state.lock:
            self._state.deferred.none_is_near()
            self._unlisted = self._state.deferred.numbers_of_whole()

    def _delayed_listed(self) -> int:
        """How many are listed, nearly: whole messages are, too."""
        whole = self._state.deferred.whole_count - len(self._unlisted)
        return max(0, len(self._due) - whole)

    def _next_list_ms(self) -> int:
        """When delayed messages have to be listed."""
        if self._listing is not None or self._delayed_listed() >= _LISTED // 2:
            return _NEVER
        return max(self._listed[0] - _AHEAD_MS, self._list_not_before_ms)

    def _list_some(self) -> None:
        numbers = self._unlisted[-_LOOKED_AT:]
        del self._unlisted[-_LOOKED_AT:]
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
        """The next delayed messages. While it goes on, new ones that are due by then are watched, whether
        they are listed or not."""
        try:
            while self._delayed_listed() < _LISTED and self._listed[0] < last_due_ms:
                after = self._listed
                rows, listed = await self._run(partial(self._page, after, last_due_ms), "")
                if self._listed != after:  # listed anew, from the beginning
                    listed = self._listed
                for row in rows:
                    if row.number not in self._ending:
                        self._due.put(row.number, row.due_ms)
                self._listed = listed
        except Exception as error:  # of the disk: it may be over
            _log.error("delayed messages cannot be listed", reason=str(error), exc_info=error)
            self._list_not_before_ms = self._now_ms() + _RETRY_MS
        finally:
            if self._is_leading and self._listing is asyncio.current_task():
                self._watched_until_ms = self._listed[0]
                self._listing = None
                self._arm()

    def _page(self, after: DuePosition, last_due_ms: int) -> tuple[list[DelayedRow], DuePosition]:
        """On a reader's thread."""
        deferred = self._state.deferred
        deferred.warm(after, last_due_ms, _PAGE)
        with self._state.lock:
            return deferred.due_page(after, last_due_ms, _PAGE)

    def _try_to_meet(
        self, deferred_id: int, message: DeferredMessage, now_ms: int, defer: Defer | None = None
    ) -> bool:
        """Whether the next one may be tried as well. `defer`: what the log has of it."""
        try:
            self._meet(deferred_id, message, now_ms, defer)
        except Exception as error:  # a mistake costs this message time, and not all that are deferred
            mistake = None if isinstance(error, BrokerError) else error
            reason = str(error)
            _log.warning(
                "a deferred message could not be ended", number=deferred_id, reason=reason, exc_info=mistake
            )
            self._due.put(deferred_id, now_ms + _RETRY_MS)
            if isinstance(error, Busy):  # so it is for all the others
                self._not_before_ms = now_ms + _RETRY_MS
                return False
        return True

    def _meet(self, deferred_id: int, message: DeferredMessage, now_ms: int, defer: Defer | None) -> None:
        if message.kind is DeferredKind.DELAYED:
            self._end(deferred_id, defer or message.defer(), Ending.MOVED)
        elif message.checks >= self._settings.max_checks:
            self._end(deferred_id, message.defer(), Ending.ROLLED_BACK)
        else:
            next_ms = now_ms + self._settings.check_again_ms
            request = Request(
                elements=[Checked(deferred_id, next_ms)], release=partial(self._checked, deferred_id)
            )
            self._committer.submit(request)
            self._checking.add(deferred_id)
            request.done.add_done_callback(partial(self._ask_in_turn, deferred_id, message))

    def _checked(self, deferred_id: int) -> None:
        self._checking.discard(deferred_id)
        with self._state.lock:
            message = self._state.deferred.get(deferred_id)
        self._watch_again(deferred_id, message)

    def _ask_in_turn(self, deferred_id: int, message: DeferredMessage, done: asyncio.Future[Done]) -> None:
        """The log has many checks at a time. Each question copies its message, and looks for a producer."""
        if done.cancelled() or done.exception() is not None or not done.result().outcomes[0]:
            return
        turns = large_turns() if message.size >= LARGE_BYTES else wake_queue()
        turns.add("orphans", partial(self._ask_for, deferred_id, message))

    def _ask_for(self, deferred_id: int, message: DeferredMessage) -> None:
        defer = message.defer()
        outgoing, host = self._moved(deferred_id, defer)
        record = encode(
            Message(
                defer.topic,
                defer.body,
                text_of(outgoing.properties),
                defer.queue_id,
                defer.flag,
                sys_flag=defer.sys_flag,
                born_timestamp=defer.born_ms,
                born_host=host,
                store_timestamp=defer.born_ms,
            )
        )
        transaction_id = deferred_handle(defer.topic, deferred_id)
        self._ask(
            OrphanedHalf(defer.topic, transaction_id, defer.client_id, bytes(record), message.checks + 1)
        )


def _no_such_delayed() -> ReadFailed:
    return ReadFailed(Status.DELAYED_UNKNOWN, "there is no such delayed message any more")


def _number_of(done: Done) -> int:
    """Of the message that a request has deferred."""
    deferred = done.outcomes[0] if done.outcomes else None
    return deferred.deferred_id if isinstance(deferred, Deferred) else -1
