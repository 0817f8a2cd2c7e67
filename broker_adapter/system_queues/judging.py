"""What is done about a half message that stands first among those whose transaction may not have ended. Pure.

RocketMQ's rules, but for times: its checks are due when the message has the age for it, and again
`check_again_ms` after the last one, where RocketMQ looks at all that it has every transactionCheckInterval.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from broker_adapter.system_queues.waiting import CHECK_TIMES, IMMUNITY_S, PREPARED_OFFSET, Waiting


class Step(Enum):
    OVER = "its transaction has ended, or it is no half message"
    WAIT = "its producer has time left"
    BEHIND = "so it has, for longer than others: it goes behind them"
    CHECK = "it goes behind the others, and its producer is asked"
    GIVE_UP = "nobody has answered as often as it may be asked, or until it was too old"


class CheckRules(NamedTuple):
    """Times in ms: until the first check of a message that names no time of its own, and between checks.
    `reserved_ms`: how old a half may become, as all messages (`fileReservedTime`)."""

    first_ms: int
    again_ms: int
    most: int
    reserved_ms: int


class Judgement(NamedTuple):
    step: Step
    due_ms: int = 0  # of WAIT
    checks: int = 0  # of CHECK: this one included


_OVER = Judgement(Step.OVER)


def judge(
    half: Waiting | None, ended: Collection[int], now_ms: int, rules: CheckRules, *, is_last: bool
) -> Judgement:
    """`ended`: queue offsets of halves whose transactions have ended. `is_last`: none is behind it."""
    if half is None:
        return _OVER
    message = half.message
    original = half.number(PREPARED_OFFSET, message.queue_offset)
    if message.queue_offset in ended or original in ended:
        return _OVER
    born_ms = min(message.born_timestamp or message.store_timestamp, message.store_timestamp)
    if now_ms - born_ms > rules.reserved_ms:
        return Judgement(Step.GIVE_UP)
    checks = half.number(CHECK_TIMES, 0)
    if checks >= rules.most:
        due_ms = message.store_timestamp + rules.again_ms
        return Judgement(Step.GIVE_UP) if due_ms <= now_ms else Judgement(Step.WAIT, due_ms)
    if checks:
        due_ms = message.store_timestamp + rules.again_ms
    else:
        own_s = half.number(IMMUNITY_S, -1)
        due_ms = born_ms + (rules.first_ms if own_s < 0 else own_s * 1_000)
    if due_ms <= now_ms:
        return Judgement(Step.CHECK, checks=checks + 1)
    is_longer = not checks and due_ms > message.store_timestamp + max(rules.first_ms, rules.again_ms)
    return Judgement(Step.BEHIND if is_longer and not is_last else Step.WAIT, due_ms)


def offsets_of(op: bytes) -> list[int]:
    """Queue offsets in the body of an op message: with commas, or one alone, as before RocketMQ 5.1."""
    texts = (text.strip() for text in op.split(b","))
    return [int(text) for text in texts if text.isdigit() and len(text) < 19]
