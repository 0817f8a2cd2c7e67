"""Which member of a group gets which queues: RocketMQ's AllocateMessageQueueAveragely, topic by topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from broker_adapter.api import TopicConfig
from broker_adapter.metadata.commands import Queues


def assign(
    subscriptions: Mapping[str, AbstractSet[str]], topics: Mapping[str, TopicConfig]
) -> dict[str, Queues]:
    """The queues of each member, sorted. `subscriptions`: member id -> names of topics.

    Each queue that can be read of a subscribed topic goes to exactly one of the members that subscribe to it.
    A topic that does not exist has no queues.
    """
    subscribers: dict[str, list[str]] = {}
    for member_id in sorted(subscriptions):
        for topic in subscriptions[member_id]:
            subscribers.setdefault(topic, []).append(member_id)
    found: dict[str, list[tuple[str, int]]] = {member_id: [] for member_id in subscriptions}
    for topic in sorted(subscribers):
        config = topics.get(topic)
        if config is None or not config.is_readable:
            continue
        for member_id, queue_ids in averagely(subscribers[topic], config.read_queues).items():
            found[member_id] += [(topic, queue_id) for queue_id in queue_ids]
    return {member_id: tuple(queues) for member_id, queues in found.items()}


def averagely(member_ids: Sequence[str], queues: int) -> dict[str, range]:
    """Neighbouring queues for each of the members, in their order.

    If it does not come out even the first ones get one more; of fewer queues than members the last get none.
    """
    share, extra = divmod(queues, len(member_ids))
    found = {}
    start = 0
    for at, member_id in enumerate(member_ids):
        end = start + share + (1 if at < extra else 0)
        found[member_id] = range(start, end)
        start = end
    return found
