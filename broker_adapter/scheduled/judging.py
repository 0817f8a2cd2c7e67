"""Decides about open half messages of a classic log: wait, check the producer, or give up. Pure functions.

For half messages in the commands of a replicated log, `DeferredDelivery` decides.

The rules are RocketMQ's, except for the times of checks. The first check is due when the half message's own
immunity time, or else `check_first_ms`, has passed since it was first stored. The next ones are due
`check_again_ms` after the previous check. RocketMQ scans all half messages once per transactionCheckInterval.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from broker_adapter.scheduled.waiting import CHECK_TIMES, IMMUNITY_S, PREPARED_OFFSET, PendingMessage


class CheckAction(Enum):
    OVER = "over"  # the transaction has ended, or the message is no half message
    WAIT = "wait"  # the producer has time left
    BEHIND = "behind"  # the producer has more time left than others: move the half to the end of the queue
    CHECK = "check"  # move the half to the end of the queue and check the producer
    GIVE_UP = "give up"  # all checks are used up, or the half is too old


class CheckRules(NamedTuple):
    """Rules for transaction checks; times in ms.

    `first_ms`: delay of the first check, for half messages that do not specify one. `again_ms`: interval
    between checks. `most`: maximum number of checks. `reserved_ms`: maximum age of a half message, which is
    the maximum age of all messages (`fileReservedTime`).
    """

    first_ms: int
    again_ms: int
    most: int
    reserved_ms: int


class CheckDecision(NamedTuple):
    step: CheckAction
    due_ms: int = 0  # with WAIT
    checks: int = 0  # with CHECK, including this one


_OVER = CheckDecision(CheckAction.OVER)


def judge(
    half: PendingMessage | None,
    ended: Collection[int],
    now_ms: int,
    rules: CheckRules,
    *,
    is_last: bool,
    steps_ms: int = 0,
) -> CheckDecision:
    """Decide about a half message.

    `ended`: queue offsets of half messages whose transactions have ended. `now_ms`: the log's time.
    `steps_ms`: the total of its steps. `is_last`: no half message follows in the queue.

    A half message is never given up before its first check. Suppose that a broker starts after several days
    of downtime. It stores half messages with an old log time, and then the log time steps forward. These
    messages look old, and so does a message from a producer whose clock is slow. Without this rule, their
    commits would be refused.
    """
    if half is None:
        return _OVER
    message = half.message
    original = half.number(PREPARED_OFFSET, message.queue_offset)
    if message.queue_offset in ended or original in ended:
        return _OVER
    since_ms = half.since_ms(steps_ms) + steps_ms  # in the time scale of `now_ms`
    checks = half.number(CHECK_TIMES, 0)
    if checks and now_ms - since_ms > rules.reserved_ms:
        return CheckDecision(CheckAction.GIVE_UP)
    if checks >= rules.most:
        due_ms = message.store_timestamp + rules.again_ms
        return (
            CheckDecision(CheckAction.GIVE_UP)
            if due_ms <= now_ms
            else CheckDecision(CheckAction.WAIT, due_ms)
        )
    if checks:
        due_ms = message.store_timestamp + rules.again_ms
    else:
        own_s = half.number(IMMUNITY_S, -1)
        due_ms = since_ms + (rules.first_ms if own_s < 0 else own_s * 1_000)
    if due_ms <= now_ms:
        return CheckDecision(CheckAction.CHECK, checks=checks + 1)
    is_longer = not checks and due_ms > message.store_timestamp + max(rules.first_ms, rules.again_ms)
    return CheckDecision(CheckAction.BEHIND if is_longer and not is_last else CheckAction.WAIT, due_ms)


def offsets_of(op: bytes) -> list[int]:
    """Parse the queue offsets in an op message, separated by commas.

    Before RocketMQ 5.1, an op message contained only one.
    """
    texts = (text.strip() for text in op.split(b","))
    return [int(text) for text in texts if text.isdigit() and len(text) < 19]
