"""Sends each call to the master, which may be this node. While there is no master, the call waits.

A call that certainly had no effect is sent again to the next master. A call with an unknown outcome is sent
again only if it is repeatable, and only once. It is then marked as repeated, because the call itself may have
crashed the first master. A call waits until its deadline, minus the time that the response needs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.endpoints.context import LATE_S, WAY_BACK_S, CallContext
from broker_adapter.endpoints.forwarding.frames import MAX_PART_BYTES
from broker_adapter.endpoints.forwarding.link import LinkRefused, MasterLink
from broker_adapter.endpoints.forwarding.members import Members
from broker_adapter.endpoints.lists.calls import WITHOUT_EFFECT, ListedCall, ListResults, may_be_sent_again
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.calls.handlers import Answering
from broker_adapter.endpoints.v5.clients import ClientStreams
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, PutIndeterminate, Status, error_for
from dledger import RoleEvent
from dledger.infra.logs import get_logger
from dledger.infra.loops.turns import wake_queue

_log = get_logger("forwarding")

#: Delay before a call is sent again to a master that has rejected it (seconds).
_AGAIN_S = 0.05
#: Delay between two streams to the same node (seconds).
_RECONNECT_S = 0.05
_REFUSED_S = 1.0

Destination = Answering | MasterLink


class ForwardingMetrics:
    """Metrics of forwarding.

    `outcomes`: number of forwarded calls by (method, outcome). `held_s`: total time for which calls waited.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.held = 0
        self.held_s = 0.0


class Forwarder:
    """Implements Answering. Runs on the event loop; call `start` and `stop` once each.

    `local` answers calls while `is_writable` returns True. Call `changed` after each change of `is_writable`,
    and `role_changed` on each role event.
    """

    def __init__(
        self,
        node_id: str,
        members: Members,
        local: Answering,
        clients: ClientStreams,
        settings: ClientServiceSettings,
        is_writable: Callable[[], bool],
        reads_here: Callable[[], bool] = lambda: False,
        *,
        reads_alone: bool = True,
    ) -> None:
        """`reads_here`: returns True if this node answers reads from its own data.

        `reads_alone`: whether this node, if `reads_here` returns False, answers reads while no master is
        reachable.
        """
        self.figures = ForwardingMetrics()
        self.link: MasterLink | None = None
        self._node_id = node_id
        self._members = members
        self._local = local
        self._clients = clients
        self._settings = settings
        self._is_writable = is_writable
        self._reads_here = reads_here
        self._reads_alone = reads_alone
        self._leader: str | None = None
        self._following: asyncio.Task[None] | None = None
        self._linked_to: str | None = None
        self._ended: set[asyncio.Task[None]] = set()
        self._change: asyncio.Future[None] | None = None
        self.is_stopped = False
        clients.on_change = self._client_changed

    # -- the current master --------------------------------------------------------------------------------

    def role_changed(self, event: RoleEvent) -> None:
        """Follow the leader.

        The stream to a leader remains open until another leader is known, because the same node may be
        elected again.
        """
        self._leader = event.leader_id
        if event.leader_id is not None and event.leader_id != self._linked_to and not self.is_stopped:
            self._let_go()
            if event.leader_id != self._node_id:
                self._linked_to = event.leader_id
                self._following = asyncio.create_task(self._follow(event.leader_id))
        self.changed()

    def changed(self) -> None:
        """Wake the calls that wait for a master."""
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    async def stop(self) -> None:
        self.is_stopped = True
        self._let_go()
        self.changed()
        await asyncio.gather(*self._ended, return_exceptions=True)

    def _let_go(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._ended.add(self._following)
            self._following.add_done_callback(self._ended.discard)
        self._following = self._linked_to = None

    async def _follow(self, leader: str) -> None:
        settings = self._settings
        while True:
            pause = _RECONNECT_S
            self.link = link = MasterLink(
                leader,
                self._members,
                self._clients,
                max_calls=settings.max_calls + settings.max_waiting_receives,
                max_bytes=settings.max_forwarded_bytes,
                on_change=self.changed,
            )
            try:
                await link.run()
            except LinkRefused as error:
                _log.error("the leader rejects calls of this node", leader=leader, reason=str(error))
                pause = _REFUSED_S
            except Exception as error:
                # Keep trying after any error, because all calls of this node's clients depend on this
                # connection.
                _log.error("the connection to the leader failed", leader=leader, exc_info=error)
                pause = _REFUSED_S
            finally:
                if self.link is link:
                    self.link = None
            await asyncio.sleep(pause)

    def _client_changed(self, client_id: str) -> None:
        if self.link is not None:
            self.link.report_client(client_id)

    # -- Answering ----------------------------------------------------------------------------------------

    async def unary(self, request: Request, context: CallContext) -> bytes:
        call = _PendingCall(self, request, context)
        while True:
            destination = await call.destination()
            try:
                async with asyncio.timeout_at(call.last_moment):
                    answer = await destination.unary(call.request, call.context())
            except TimeoutError:
                call.failed(destination, call.too_late())
            except BrokerError as error:
                call.failed(destination, error)
            else:
                call.count(destination, "answered")
                return answer

    async def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        call = _PendingCall(self, request, context)
        while True:
            destination = await call.destination()
            async with aclosing(destination.stream(request, call.context())) as answers:
                try:
                    async with asyncio.timeout_at(call.last_moment):
                        first = await anext(answers)
                except TimeoutError:
                    call.failed(destination, call.too_late())
                except BrokerError as error:
                    call.failed(destination, error)
                else:
                    call.count(destination, "answered")
                    yield first
                    async for answer in answers:
                        yield answer
                    return

    def forward_list(self, calls: Sequence[ListedCall]) -> AsyncGenerator[ListResults, None] | None:
        """Implements ForwardList. The caller sends calls again, and observes their deadlines."""
        master = self.destination()
        return self._forward_list(master, calls) if isinstance(master, MasterLink) else None

    async def _forward_list(
        self, master: MasterLink, calls: Sequence[ListedCall]
    ) -> AsyncGenerator[ListResults, None]:
        unanswered = len(calls)
        try:
            async with aclosing(master.unary_list(calls)) as groups:
                async for results in groups:
                    unanswered -= len(results)
                    for number, result in results:
                        self._count_listed(*calls[number], result)
                    yield results
        finally:
            self.figures.outcomes[calls[0][0].name, "unknown"] += unanswered

    def _count_listed(self, request: Request, context: CallContext, result: bytes | BrokerError) -> None:
        outcome = "answered"
        if isinstance(result, BrokerError):
            is_unknown = result.status is Status.OUTCOME_UNKNOWN
            may_again = may_be_sent_again(request, result, int(context.is_repeated) + is_unknown)
            outcome = "sent again" if may_again else "unknown" if is_unknown else "refused"
        self.figures.outcomes[request.name, outcome] += 1

    # -- for pending calls ---------------------------------------------------------------------------------

    def destination(self) -> Destination | None:
        """Return the current master."""
        if self._is_writable():
            return self._local
        link = self.link
        return link if link is not None and link.is_writable and self._leader == link.node_id else None

    def reader(self) -> Answering | None:
        """Return the component that answers reads on this node, or None if reads require the master."""
        is_here = self._reads_here() or (self._reads_alone and self.destination() is None)
        return self._local if is_here else None

    @property
    def settings(self) -> ClientServiceSettings:
        return self._settings

    async def wait(self, until: float) -> None:
        """Wait for a change of the master, but no longer than `until` (loop time)."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await asyncio.shield(self._change)
        await wake_queue().turn("held")  # a change of the master wakes all waiting calls


class _PendingCall:
    """A call that is still unanswered."""

    def __init__(self, forwarder: Forwarder, request: Request, context: CallContext) -> None:
        if len(request) > MAX_PART_BYTES:
            text = f"the request has {len(request)} bytes; nodes forward up to {MAX_PART_BYTES}"
            raise Rejected(Code.PAYLOAD_TOO_LARGE, text)
        self._forwarder = forwarder
        self.request = request
        self._context = context
        self._loop = loop = asyncio.get_running_loop()
        begin = loop.time()
        self._deadline = None if context.timeout_s is None else begin + context.timeout_s
        held_s = forwarder.settings.max_hold_ms / 1000
        self._give_up = begin + held_s if self._deadline is None else self._deadline - WAY_BACK_S
        #: The time after which a response is useless.
        self.last_moment = None if self._deadline is None else self._deadline - LATE_S
        self._error: BrokerError | None = None
        self._unknown = int(context.is_repeated)  # attempts with an unknown outcome
        self._not_before = 0.0

    async def destination(self) -> Destination:
        """Wait for a destination.

        At the deadline, raises a BrokerError with the last known state of the call.
        """
        forwarder, loop = self._forwarder, self._loop
        if self._error is None and self.request.is_read and (reader := forwarder.reader()) is not None:
            return reader
        if self._error is None and (found := forwarder.destination()) is not None:
            return found
        began = loop.time()
        try:
            while (now := loop.time()) < self._give_up and not forwarder.is_stopped:
                found = forwarder.destination()
                if found is not None and now >= self._not_before:
                    return found
                await forwarder.wait(self._give_up if found is None else self._not_before)
        finally:
            forwarder.figures.held += 1
            forwarder.figures.held_s += loop.time() - began
        raise self._last_word()

    def context(self) -> CallContext:
        """Return the context with the remaining time."""
        left_s = None if self._deadline is None else max(0.0, self._deadline - self._loop.time())
        return self._context._replace(is_repeated=self._unknown > 0, timeout_s=left_s)

    def failed(self, destination: Destination, error: BrokerError) -> None:
        """Record a failed attempt. If the call may not be sent again, raises the error."""
        self._unknown += error.status is Status.OUTCOME_UNKNOWN
        self._error = error
        may_again = may_be_sent_again(self.request, error, self._unknown)
        if may_again and self._loop.time() < self._give_up:
            self._not_before = self._loop.time() + _AGAIN_S
            self.count(destination, "sent again")
            return
        self.count(destination, "unknown" if self._unknown else "refused")
        raise self._last_word()

    def too_late(self) -> BrokerError:
        return PutIndeterminate(Status.OUTCOME_UNKNOWN, "the master did not answer in time")

    def count(self, destination: Destination, outcome: str) -> None:
        if isinstance(destination, MasterLink):
            self._forwarder.figures.outcomes[self.request.name, outcome] += 1

    def _last_word(self) -> BrokerError:
        """Return the final error.

        If the outcome of an earlier attempt is unknown, a later rejection does not make it known.
        """
        error = self._error
        if error is None:
            return error_for(Status.NOT_MASTER, "there is no master yet, or it cannot be reached")
        if self._unknown and error.status in WITHOUT_EFFECT:
            return PutIndeterminate(
                Status.OUTCOME_UNKNOWN, f"an earlier attempt may have succeeded; then: {error.message}"
            )
        return error
