"""The attempts of one send: which ones may follow, where they may go, and the final error. No I/O.

A *filter* is the duplicate filter of a log. It recognizes a repeated message id, whatever queue or broker
name the repeat uses, and answers with the position of the first attempt. A response to a send contains the
name of the filter. All broker names of one log share one filter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from broker_adapter.client.core import outcomes
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.errors import BrokerError, PutIndeterminate, PutRefused, Status
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX

#: Brokers store every send to these topics, because a message keeps its id each time it is returned.
TOPICS_WITHOUT_IDS: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
#: Attempts that may reach different logs: RocketMQ's retryTimesWhenSendFailed, plus the first.
MAX_ATTEMPTS: Final = 3
#: Time for further attempts after an attempt with an unknown outcome (seconds). Brokers forget an id after 60
#: s of cluster time, which may run at double speed.
_REPEAT_S: Final = 25
#: Pauses between further attempts that the filter makes safe (seconds).
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.1, 1.0


class SendAttempts:
    """The attempts of one send until its deadline (loop time).

    `filters`: the known filters, by broker name. `wanted`: the queue, if it is given or a repeat must keep
    it.
    """

    def __init__(
        self,
        topic: str,
        filters: Mapping[str, str],
        deadline: float,
        wanted: MessageQueue | None,
        *,
        is_ordered: bool,
    ) -> None:
        self.deadline = deadline
        self.wanted = wanted
        self.number = 0  # attempts so far
        self.tried: frozenset[str] = frozenset()  # broker names
        self.unknown: PutIndeterminate | None = None  # the last attempt that may have stored the message
        self._last: BrokerError | None = None
        self._filters: Mapping[str, str] = {} if topic.startswith(TOPICS_WITHOUT_IDS) else filters
        self._is_ordered = is_ordered
        self._filter: str | None = None  # of all attempts with an unknown outcome; None: unknown or several

    @property
    def error(self) -> BrokerError:
        return (
            self.unknown
            or self._last
            or PutRefused(Status.NOT_CONNECTED, "the timeout expired before the first attempt")
        )

    @property
    def pause_s(self) -> float:
        """Time to wait before the next attempt."""
        excess = self.number - MAX_ATTEMPTS
        return 0.0 if excess < 0 else float(min(_MIN_PAUSE_S * 2 ** min(excess, 9), _MAX_PAUSE_S))

    def may_continue(self, now: float) -> bool:
        return now < self.deadline and (self.number < MAX_ATTEMPTS or self._filter is not None)

    def is_safe(self, queue: MessageQueue) -> bool:
        """Return True if the message cannot be stored twice by an attempt at this queue."""
        if self.unknown is None:
            return True
        return self._filter is not None and self._filters.get(queue.broker_name) == self._filter

    def allowed(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """Return the queues for the next attempt of a send without an order: safe ones if there are any."""
        return [queue for queue in queues if self.is_safe(queue)] or queues

    def same_queue(self, wanted: MessageQueue, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the wanted queue under a broker name of its log that was not tried yet, if there is one."""
        its_filter = self._filters.get(wanted.broker_name)
        names = [
            queue
            for queue in sorted(queues)
            if queue.queue_id == wanted.queue_id
            and queue.broker_name not in self.tried
            and its_filter is not None
            and self._filters.get(queue.broker_name) == its_filter
        ]
        return names[0] if names else wanted

    def failed(self, queue: MessageQueue, error: BrokerError, started: float) -> bool:
        """Record a failed attempt. Return True if another one may follow."""
        self._last = error
        self.tried |= {queue.broker_name}
        if isinstance(error, PutIndeterminate):
            its_filter = self._filters.get(queue.broker_name)
            if self.unknown is None:
                self.deadline = min(self.deadline, started + _REPEAT_S)
                self._filter = its_filter
            elif its_filter != self._filter:
                self._filter = None
            self.unknown = error
            if self._is_ordered:
                self.wanted = self.wanted or queue
        if not outcomes.retries_elsewhere(error):
            return False
        return self.unknown is None or not self._is_ordered or self._filter is not None
