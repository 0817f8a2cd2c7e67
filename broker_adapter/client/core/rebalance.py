"""Assignment of a topic's queues to group members (RocketMQ's AllocateMessageQueueStrategy). Pure functions.

Each member computes the assignment itself, so all members must pass the same queues and members in the same
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from broker_adapter.client.core.values import MessageQueue

#: Maps (queues, member ids, own id) to the own queues.
AllocateStrategy: TypeAlias = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def allocate_averagely(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Assign a range of consecutive queues to each member.

    If the queues do not divide evenly, the first members get one more.
    """
    ordered, ranks = sorted(queues), sorted(set(members))
    if me not in ranks:
        return []
    rank = ranks.index(me)
    share, rest = divmod(len(ordered), len(ranks))
    first = rank * share + min(rank, rest)
    return ordered[first : first + share + (rank < rest)]


def allocate_averagely_by_circle(
    queues: Sequence[MessageQueue], members: Sequence[str], me: str
) -> list[MessageQueue]:
    """Assign queues to members in turn, so that each member gets queues from all brokers."""
    ordered, ranks = sorted(queues), sorted(set(members))
    return ordered[ranks.index(me) :: len(ranks)] if me in ranks else []
