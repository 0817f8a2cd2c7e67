"""Renews the deliveries of clients that are alive, and releases the deliveries of clients that left. Runs on
the master.

Only deliveries that reached their client are renewed, because a response may be lost while its client stays
alive. The endpoint reports each response that reached its client. If its messages are still in flight a
little later, a ConfirmReceipt in the log records this for the next master. Clients may have any number of
deliveries, so the work is divided into steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

import structlog

from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery.receive_queues import GroupTopic, ReceiveQueues
from broker_adapter.delivery_state.commands import ChangeKind, ChangeVisibility, ConfirmReceipt, QueueKey
from broker_adapter.delivery_state.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError, PutIndeterminate, Status
from broker_adapter.put.committer import Committer, PutRequest, RequestOutcome

_log = structlog.get_logger(part="delivery")

#: Maximum number of messages and clients per event-loop step, and of messages per request.
MAX_PER_STEP = 250
#: Pause between two steps, in which the event loop does other work (seconds).
_PAUSE_S = 0.002
#: Maximum delay until the log records that deliveries have reached their client (seconds).
_RECORD_DELAY_S = 1.0

_Steps = Generator[int, None, None]
_Place = tuple[QueueKey, int, PoppedMessage]


class Renewals:
    """Renewal of deliveries.

    A new master initially treats every client as alive, so that each has the usual time to send a heartbeat.
    """

    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        receive_queues: ReceiveQueues,
        *,
        now_ms: Callable[[], int],
        settings: DeliverySettings,
    ) -> None:
        """`now_ms` returns cluster time without its steps."""
        self._state = state
        self._committer = committer
        self._receive_queues = receive_queues
        self._now_ms = now_ms
        self._settings = settings
        #: Time of each client's last sign of life, by client and group; "" stands for all other groups. The
        #: least recently seen client is first.
        self._last_seen: dict[str, dict[str, int]] = {}
        self._since_ms = 0
        self._passed_on: dict[tuple[QueueKey, int], list[int]] = {}  # offsets by pop
        self._timer: asyncio.TimerHandle | None = None
        self._record_timer: asyncio.TimerHandle | None = None
        self._step_timers: set[asyncio.TimerHandle] = set()
        self._releases: set[asyncio.Future[None]] = set()
        self._is_sweeping = False
        self._is_leading = False

    def start(self) -> None:
        self._is_leading = True
        self._since_ms = self._now_ms()
        self._arm()

    def stop(self) -> None:
        self._is_leading = self._is_sweeping = False
        self._last_seen.clear()
        self._passed_on.clear()
        for timer in (self._timer, self._record_timer, *self._step_timers):
            if timer is not None:
                timer.cancel()
        self._timer = self._record_timer = None
        self._step_timers.clear()
        text = "this broker is no longer the master"
        for ended in self._releases:
            if not ended.done():
                ended.set_exception(PutIndeterminate(Status.OUTCOME_UNKNOWN, text))

    def receives(self, client_id: str, group: str) -> None:
        """Record a receive call, a sign of life of its client. The client's deliveries are renewed from now
        on.
        """
        self._note(client_id, group, self._now_ms())

    def heard_of(self, client_id: str, group: str) -> None:
        """Record a sign of life from a client, which keeps its deliveries in the group, or in all groups
        ("").

        Client ids are not secret, so the caller must have checked that the account may consume in the group.
        Clients that neither receive nor have deliveries in the group are not recorded.
        """
        known = self._last_seen.get(client_id, {})
        if group in known or self._holds(client_id, group) or (not group and known):
            self._note(client_id, group, self._now_ms())

    def _holds(self, client_id: str, group: str) -> bool:
        with self._state.lock:
            return any(group in ("", queue.key.group) for queue in self._state.queues_of(client_id))

    def _note(self, client_id: str, group: str, at_ms: int) -> None:
        known = self._last_seen.pop(client_id, {})
        self._last_seen[client_id] = known if group else {}
        self._last_seen[client_id][group] = at_ms

    def _last_seen_ms(self, client_id: str, group: str) -> int:
        known = self._last_seen.get(client_id, {})
        return known.get(group, known.get("", self._since_ms))

    def passed_on(self, places: Iterable[tuple[QueueKey, int, int]]) -> None:
        """Record deliveries (queue, offset, pop) that have reached their client.

        They are renewed once a ConfirmReceipt for them has been applied.
        """
        if not self._is_leading:
            return
        for key, offset, pop in places:
            self._passed_on.setdefault((key, pop), []).append(offset)
        self._record_later()

    def _record_later(self) -> None:
        if self._passed_on and self._record_timer is None:
            delay = min(_RECORD_DELAY_S, self._settings.invisible_ms / 8 / 1000)
            self._record_timer = asyncio.get_running_loop().call_later(delay, self.record)

    def release_client(self, client_id: str, group: str) -> asyncio.Future[None]:
        """Release the deliveries of a client that has left a group. An empty `group` means all groups.

        They become visible soon. The future completes when all changes are committed; it raises BrokerError.
        """
        self._note(client_id, group, self._now_ms() - self._settings.heard_ms)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # the caller may have been cancelled
        ended.add_done_callback(lambda _: ended.cancelled() or ended.exception())
        self._releases.add(ended)
        ended.add_done_callback(self._releases.discard)
        self._run_steps(self._release(client_id, group, ended))
        return ended

    # -- steps --------------------------------------------------------------------------------------------

    def _run_steps(self, steps: _Steps) -> None:
        """Run the first step now, and the others after pauses."""
        if next(steps, None) is None:
            return
        loop = asyncio.get_running_loop()

        def run_next() -> None:
            self._step_timers.discard(timer)
            self._run_steps(steps)

        timer = loop.call_later(_PAUSE_S, run_next)
        self._step_timers.add(timer)

    def _arm(self) -> None:
        delay = self._settings.invisible_ms / 8 / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self.renew)

    def renew(self) -> None:
        """Renew the deliveries that expire in less than half a period.

        Called several times in each half period.
        """
        self._arm()
        if not self._is_sweeping:
            self._is_sweeping = True
            self._run_steps(self._sweep())

    def _sweep(self) -> _Steps:
        silent_ms = self._now_ms() - self._settings.heard_ms
        if self._since_ms <= silent_ms:  # in the first period, unknown clients count as alive
            self._forget_silent(silent_ms)
        with self._state.lock:
            owners = self._state.owners()
        deliveries: list[_Place] = []
        examined = 0
        try:
            for client in owners:
                examined += 1
                for queue, offsets in self._parts_of(client, silent_ms):
                    deliveries += self._due_of(queue, offsets)
                    examined += len(offsets)
                    if examined >= MAX_PER_STEP:
                        self._renew(deliveries)
                        yield examined
                        examined, deliveries = 0, []
                if examined >= MAX_PER_STEP:
                    self._renew(deliveries)
                    yield examined
                    examined, deliveries = 0, []
            self._renew(deliveries)
        finally:
            self._is_sweeping = False

    def _forget_silent(self, silent_ms: int) -> None:
        while self._last_seen:
            client = next(iter(self._last_seen))
            if max(self._last_seen[client].values()) > silent_ms:
                break
            del self._last_seen[client]

    def _parts_of(
        self, client: str, silent_ms: int = -1
    ) -> Generator[tuple[QueueDelivery, list[int]], None, None]:
        """Yield a client's deliveries in parts, for each group in which the client was alive after
        `silent_ms`.
        """
        with self._state.lock:
            queues = self._state.queues_of(client)
            heard = [queue for queue in queues if self._last_seen_ms(client, queue.key.group) > silent_ms]
            offsets_by_queue = [(queue, queue.popped_by(client)) for queue in heard]
        for queue, offsets in offsets_by_queue:
            for at in range(0, len(offsets), MAX_PER_STEP):
                yield queue, offsets[at : at + MAX_PER_STEP]

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
            _log.warning("renewal of deliveries failed", reason=str(error))

    def _release(self, client_id: str, group: str, ended: asyncio.Future[None]) -> _Steps:
        under_way: list[asyncio.Future[RequestOutcome]] = []
        examined = 0
        try:
            for queue, offsets in self._parts_of(client_id):
                if group in ("", queue.key.group):
                    soon = self._now_ms() + self._settings.release_ms
                    there = self._there(queue, offsets)
                    popped = [
                        one for one in there if one[2].owner == client_id and one[2].invisible_until_ms > soon
                    ]
                    under_way += self._change(popped, self._settings.release_ms, ChangeKind.RELEASE)
                examined += len(offsets)
                if examined >= MAX_PER_STEP:
                    yield examined
                    examined = 0
        except BrokerError as error:
            ended.set_exception(error)
            return
        _complete_after(under_way, ended)

    # -- into the log -------------------------------------------------------------------------------------

    def record(self) -> None:
        """Record in the log that some of the deliveries have reached their client."""
        self._record_timer = None
        elements: list[ConfirmReceipt] = []
        examined = 0
        while self._passed_on and examined < MAX_PER_STEP:
            (key, pop), offsets = next(iter(self._passed_on.items()))
            del self._passed_on[key, pop]
            examined += 1 + len(offsets)
            with self._state.lock:
                queue = self._state.queue(key)
            # Most messages are acknowledged by now.
            deliveries = () if queue is None else self._there(queue, offsets)
            remaining = tuple(offset for _, offset, popped in deliveries if popped.pop == pop)
            if remaining:
                elements.append(ConfirmReceipt(key, pop, remaining))
        try:
            if elements:
                result = self._committer.submit(PutRequest(elements=elements))
                result.add_done_callback(partial(self._on_recorded, elements))
        except BrokerError as error:
            self._record_again(elements, error)
        if self._passed_on and self._record_timer is None:
            self._record_timer = asyncio.get_running_loop().call_later(_PAUSE_S, self.record)

    def _on_recorded(
        self, elements: Sequence[ConfirmReceipt], result: asyncio.Future[RequestOutcome]
    ) -> None:
        if not result.cancelled() and isinstance(error := result.exception(), BrokerError):
            self._record_again(elements, error)

    def _record_again(self, elements: Sequence[ConfirmReceipt], error: BrokerError) -> None:
        """Schedule another attempt.

        The deliveries are not renewed until the change is committed. The next attempt omits deliveries that
        are no longer in flight.
        """
        _log.warning("could not record that deliveries reached their clients", reason=str(error))
        if self._is_leading:
            for key, pop, offsets in elements:
                self._passed_on.setdefault((key, pop), []).extend(offsets)
            self._record_later()

    def _change(
        self, popped: Sequence[_Place], invisible_ms: int, kind: ChangeKind
    ) -> list[asyncio.Future[RequestOutcome]]:
        done = []
        for at in range(0, len(popped), MAX_PER_STEP):
            part = popped[at : at + MAX_PER_STEP]
            elements = [
                ChangeVisibility(key, offset, one.pop, invisible_ms, kind) for key, offset, one in part
            ]
            whose = dict.fromkeys(GroupTopic(key.group, key.topic) for key, _, _ in part)
            done.append(
                self._committer.submit(PutRequest(elements=elements, release=partial(self._wake, whose)))
            )
        return done

    def _wake(self, whose: Iterable[GroupTopic]) -> None:
        """Wake receives after a change of their wait times."""
        for who in whose:
            self._receive_queues.wake_one(who)


def _complete_after(under_way: Sequence[asyncio.Future[RequestOutcome]], ended: asyncio.Future[None]) -> None:
    """Complete `ended` when all futures are done. If any failed, use the first error."""

    def done(gathered: asyncio.Future[list[RequestOutcome | BaseException]]) -> None:
        if ended.done() or gathered.cancelled():
            return
        for outcome in gathered.result():
            if isinstance(outcome, BaseException):
                ended.set_exception(outcome)
                return
        ended.set_result(None)

    asyncio.gather(*under_way, return_exceptions=True).add_done_callback(done)
