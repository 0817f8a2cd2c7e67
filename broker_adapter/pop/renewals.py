"""What clients hold: renewed as long as they are heard of, let go of when they went. On the master only.

Only what has reached its client is renewed: an answer may be lost on its way, and its client lives on without
it. Whoever passes answers on says so; the log gets to know it a little later, if the message is not done by
then, and so does the next master. How much clients hold, they decide: all of it is gone through in steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

import structlog

from broker_adapter.config.settings import DeliverySettings
from broker_adapter.errors import BrokerError, PutIndeterminate, Status
from broker_adapter.pop.commands import Change, ChangeKind, PassedOn, QueueKey
from broker_adapter.pop.committer import Committer, Done, Request
from broker_adapter.pop.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.pop.receive_queues import GroupTopic, ReceiveQueues
from broker_adapter.pop.state import DeliveryState

_log = structlog.get_logger(part="delivery")

#: Messages and clients that one step of the loop looks at, and messages of one request.
MOST_AT_ONCE = 250
#: Between two steps (seconds): the loop is for others meanwhile.
_PAUSE_S = 0.002
#: What has reached its client is told to the log after this at the latest.
_TELL_S = 1.0

_Steps = Generator[int, None, None]
_Place = tuple[QueueKey, int, PoppedMessage]


class Renewals:
    """A new master takes every client for heard of when it begins: each has the usual time to speak up."""

    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        receive_queues: ReceiveQueues,
        *,
        now_ms: Callable[[], int],
        settings: DeliverySettings,
    ) -> None:
        """`now_ms` is cluster time."""
        self._state = state
        self._committer = committer
        self._receive_queues = receive_queues
        self._now_ms = now_ms
        self._settings = settings
        #: When each client was heard of, by group; "": in all but those. In the order of the last times.
        self._heard: dict[str, dict[str, int]] = {}
        self._since_ms = 0
        self._passed_on: dict[tuple[QueueKey, int], list[int]] = {}  # offsets by pop
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._going_on: set[asyncio.TimerHandle] = set()
        self._letting_go: set[asyncio.Future[None]] = set()
        self._is_sweeping = False
        self._is_leading = False

    def start(self) -> None:
        self._is_leading = True
        self._since_ms = self._now_ms()
        self._arm()

    def stop(self) -> None:
        self._is_leading = self._is_sweeping = False
        self._heard.clear()
        self._passed_on.clear()
        for timer in (self._timer, self._telling, *self._going_on):
            if timer is not None:
                timer.cancel()
        self._timer = self._telling = None
        self._going_on.clear()
        text = "this broker is not the master any more"
        for ended in self._letting_go:
            if not ended.done():
                ended.set_exception(PutIndeterminate(Status.OUTCOME_UNKNOWN, text))

    def receives(self, client_id: str, group: str) -> None:
        """A client asks for messages of a group: what it is given is renewed from now on."""
        self._note(client_id, group, self._now_ms())

    def heard_of(self, client_id: str, group: str) -> None:
        """A client lives: it keeps what it holds of the group ("": of all). Client ids are no secrets: the
        caller has seen to it that the account may consume in the group. Who holds nothing of it and does not
        receive is not remembered."""
        known = self._heard.get(client_id, {})
        if group in known or self._holds(client_id, group) or (not group and known):
            self._note(client_id, group, self._now_ms())

    def _holds(self, client_id: str, group: str) -> bool:
        with self._state.lock:
            return any(group in ("", queue.key.group) for queue in self._state.queues_of(client_id))

    def _note(self, client_id: str, group: str, at_ms: int) -> None:
        known = self._heard.pop(client_id, {})
        self._heard[client_id] = known if group else {}
        self._heard[client_id][group] = at_ms

    def _heard_ms(self, client_id: str, group: str) -> int:
        known = self._heard.get(client_id, {})
        return known.get(group, known.get("", self._since_ms))

    def passed_on(self, places: Iterable[tuple[QueueKey, int, int]]) -> None:
        """(queue, offset, pop) of what has reached its client, and is to be renewed."""
        if not self._is_leading:
            return
        for key, offset, pop in places:
            self._passed_on.setdefault((key, pop), []).append(offset)
        self._tell_later()

    def _tell_later(self) -> None:
        if self._passed_on and self._telling is None:
            delay = min(_TELL_S, self._settings.invisible_ms / 8 / 1000)
            self._telling = asyncio.get_running_loop().call_later(delay, self.tell)

    def let_go(self, client_id: str, group: str) -> asyncio.Future[None]:
        """What a client that went holds (of the group, or "") becomes visible soon. Done when the log has all
        of it; BrokerError."""
        self._note(client_id, group, self._now_ms() - self._settings.heard_ms)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(lambda _: ended.cancelled() or ended.exception())  # who asked may have gone
        self._letting_go.add(ended)
        ended.add_done_callback(self._letting_go.discard)
        self._go_on(self._release(client_id, group, ended))
        return ended

    # -- steps --------------------------------------------------------------------------------------------

    def _go_on(self, steps: _Steps) -> None:
        """The first step now, the others with pauses in between."""
        if next(steps, None) is None:
            return
        loop = asyncio.get_running_loop()

        def later() -> None:
            self._going_on.discard(timer)
            self._go_on(steps)

        timer = loop.call_later(_PAUSE_S, later)
        self._going_on.add(timer)

    def _arm(self) -> None:
        delay = self._settings.invisible_ms / 8 / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self.renew)

    def renew(self) -> None:
        """What is less than half a period from its end. Called several times in that."""
        self._arm()
        if not self._is_sweeping:
            self._is_sweeping = True
            self._go_on(self._sweep())

    def _sweep(self) -> _Steps:
        silent_ms = self._now_ms() - self._settings.heard_ms
        if self._since_ms <= silent_ms:  # until then who is not known is taken for heard of
            self._forget_silent(silent_ms)
        with self._state.lock:
            owners = self._state.owners()
        found: list[_Place] = []
        looked_at = 0
        try:
            for client in owners:
                looked_at += 1
                for queue, offsets in self._parts_of(client, silent_ms):
                    found += self._due_of(queue, offsets)
                    looked_at += len(offsets)
                    if looked_at >= MOST_AT_ONCE:
                        self._renew(found)
                        yield looked_at
                        looked_at, found = 0, []
                if looked_at >= MOST_AT_ONCE:
                    self._renew(found)
                    yield looked_at
                    looked_at, found = 0, []
            self._renew(found)
        finally:
            self._is_sweeping = False

    def _forget_silent(self, silent_ms: int) -> None:
        while self._heard:
            client = next(iter(self._heard))
            if max(self._heard[client].values()) > silent_ms:
                break
            del self._heard[client]

    def _parts_of(
        self, client: str, silent_ms: int = -1
    ) -> Generator[tuple[QueueDelivery, list[int]], None, None]:
        """What a client holds, in parts; of groups in which it was heard of after `silent_ms`."""
        with self._state.lock:
            queues = self._state.queues_of(client)
            heard = [queue for queue in queues if self._heard_ms(client, queue.key.group) > silent_ms]
            found = [(queue, queue.popped_by(client)) for queue in heard]
        for queue, offsets in found:
            for at in range(0, len(offsets), MOST_AT_ONCE):
                yield queue, offsets[at : at + MOST_AT_ONCE]

    def _due_of(self, queue: QueueDelivery, offsets: Sequence[int]) -> list[_Place]:
        now_ms = self._now_ms()
        due_ms = now_ms + self._settings.invisible_ms // 2
        oldest_ms = now_ms - self._settings.max_renewed_ms
        return [
            one
            for one in self._there(queue, offsets)
            if one[2].renews and now_ms < one[2].invisible_until_ms < due_ms and one[2].given_ms > oldest_ms
        ]

    def _there(self, queue: QueueDelivery, offsets: Sequence[int]) -> list[_Place]:
        key = queue.key
        with self._state.lock:
            found = [(offset, queue.pending.get(offset)) for offset in offsets]
        return [(key, offset, popped) for offset, popped in found if popped is not None]

    def _renew(self, found: Sequence[_Place]) -> None:
        try:
            self._change(found, self._settings.invisible_ms, ChangeKind.RENEW)
        except BrokerError as error:
            _log.warning("what clients hold could not be renewed", reason=str(error))

    def _release(self, client_id: str, group: str, ended: asyncio.Future[None]) -> _Steps:
        under_way: list[asyncio.Future[Done]] = []
        looked_at = 0
        try:
            for queue, offsets in self._parts_of(client_id):
                if group in ("", queue.key.group):
                    soon = self._now_ms() + self._settings.release_ms
                    there = self._there(queue, offsets)
                    popped = [
                        one for one in there if one[2].owner == client_id and one[2].invisible_until_ms > soon
                    ]
                    under_way += self._change(popped, self._settings.release_ms, ChangeKind.RELEASE)
                looked_at += len(offsets)
                if looked_at >= MOST_AT_ONCE:
                    yield looked_at
                    looked_at = 0
        except BrokerError as error:
            ended.set_exception(error)
            return
        _settle_after(under_way, ended)

    # -- into the log -------------------------------------------------------------------------------------

    def tell(self) -> None:
        """The log, of some of what has reached its client."""
        self._telling = None
        elements: list[PassedOn] = []
        looked_at = 0
        while self._passed_on and looked_at < MOST_AT_ONCE:
            (key, pop), offsets = next(iter(self._passed_on.items()))
            del self._passed_on[key, pop]
            looked_at += 1 + len(offsets)
            with self._state.lock:
                queue = self._state.queue(key)
            # Most of it is done by now.
            found = () if queue is None else self._there(queue, offsets)
            left = tuple(offset for _, offset, popped in found if popped.pop == pop)
            if left:
                elements.append(PassedOn(key, pop, left))
        try:
            if elements:
                told = self._committer.submit(Request(elements=elements))
                told.add_done_callback(partial(self._told, elements))
        except BrokerError as error:
            self._tell_again(elements, error)
        if self._passed_on and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_PAUSE_S, self.tell)

    def _told(self, elements: Sequence[PassedOn], told: asyncio.Future[Done]) -> None:
        if not told.cancelled() and isinstance(error := told.exception(), BrokerError):
            self._tell_again(elements, error)

    def _tell_again(self, elements: Sequence[PassedOn], error: BrokerError) -> None:
        """Until the log has it nothing of it is renewed. What is not in flight any more is left out then."""
        _log.warning("that messages have reached their clients is not in the log", reason=str(error))
        if self._is_leading:
            for key, pop, offsets in elements:
                self._passed_on.setdefault((key, pop), []).extend(offsets)
            self._tell_later()

    def _change(
        self, popped: Sequence[_Place], invisible_ms: int, kind: ChangeKind
    ) -> list[asyncio.Future[Done]]:
        done = []
        for at in range(0, len(popped), MOST_AT_ONCE):
            part = popped[at : at + MOST_AT_ONCE]
            elements = [Change(key, offset, one.pop, invisible_ms, kind) for key, offset, one in part]
            whose = dict.fromkeys(GroupTopic(key.group, key.topic) for key, _, _ in part)
            done.append(
                self._committer.submit(Request(elements=elements, release=partial(self._wake, whose)))
            )
        return done

    def _wake(self, whose: Iterable[GroupTopic]) -> None:
        """They wait for another time now."""
        for who in whose:
            self._receive_queues.wake_one(who)


def _settle_after(under_way: Sequence[asyncio.Future[Done]], ended: asyncio.Future[None]) -> None:
    """`ended` is done when all of them are; the first error is its own."""

    def done(all_of_them: asyncio.Future[list[Done | BaseException]]) -> None:
        if ended.done() or all_of_them.cancelled():
            return
        for outcome in all_of_them.result():
            if isinstance(outcome, BaseException):
                ended.set_exception(outcome)
                return
        ended.set_result(None)

    gathered = asyncio.gather(*under_way, return_exceptions=True)
    gathered.add_done_callback(done)
