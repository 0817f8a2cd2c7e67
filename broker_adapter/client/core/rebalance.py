"""Which queues of a topic a member of a group has. Pure; RocketMQ's AllocateMessageQueueStrategy.

All members compute it for themselves, so they must see the same queues and members, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from broker_adapter.client.core.values import MessageQueue

#: Queues, members, the id of the member that asks -> its queues.
AllocateStrategy: TypeAlias = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def allocate_averagely(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Neighbouring queues for each member; the first members have one more if they do not divide evenly."""
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
    """Queues by turns, so that each member has queues of all brokers."""
    ordered, ranks = sorted(queues), sorted(set(members))
    return ordered[ranks.index(me) :: len(ranks)] if me in ranks else []
