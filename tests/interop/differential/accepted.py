"""The differences to RocketMQ that are accepted, each with its reason. Everything else fails the test.

The section "Differences from RocketMQ that the differential test accepts" of docs/deviations.md has an item
for each rule; `test_differential` compares the two. Some requests are not sent to RocketMQ at all, because
we deviate on purpose and all later answers would differ: see `NOT_ASKED`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .compare import ABSENT, Difference

#: Requests that RocketMQ is not sent, and offsets that are translated: name of the rule, reason.
NOT_ASKED = {
    "retried-send": "RocketMQ stores a retried send a second time; ours recognises it by id and content",
    "ended-half": "RocketMQ ends a transaction again that has ended; ours keeps the first end",
    "group-by-pull": "RocketMQ creates a group for a pull; ours for a heartbeat, a commit or a lock",
    "lower-commit": "RocketMQ takes a commit below the stored offset; ours lowers it by resets only",
    "commit-after-takeover": "For a minute after a start, commits to a queue that was reset may be refused",
    "recreated-topic-offsets": "Queues of a recreated topic go on at the offset after the deleted messages",
}


class Rule(NamedTuple):
    """`kinds`: kinds of steps; `paths`: regular expression that the whole path matches."""

    name: str
    reason: str
    kinds: frozenset[str]
    paths: str
    accepts: Callable[[Difference], bool] = lambda difference: True

    def matches(self, difference: Difference) -> bool:
        return (
            difference.step.kind in self.kinds
            and re.fullmatch(self.paths, difference.path) is not None
            and self.accepts(difference)
        )


def _is_recreated(found: Difference) -> bool:
    """Whether the topic of the step was deleted before it."""
    before = [step for step in found.steps if step.number < found.step.number]
    return any(
        step.kind == "delete_topic" and step.args["topic"] == found.step.args["topic"] for step in before
    )


def _is_exchanged(found: Difference) -> bool:
    """Whether the two directories were exchanged before the step: then RocketMQ shows what our classic broker
    has stored, and that one what RocketMQ has stored."""
    return any(step.args.get("exchange") for step in found.steps if step.number < found.step.number)


def _is_read_after_a_kill(found: Difference) -> bool:
    """Whether RocketMQ was started on the directory of our classic broker after a kill."""
    before = [step for step in found.steps if step.number < found.step.number]
    return any(step.args.get("exchange") and step.args["how"] == "kill" for step in before)


_READS = frozenset({"drain", "pull", "pull_filtered", "view"})
RULES: tuple[Rule, ...] = (
    Rule(
        "empty-queue-offset",
        "A group without an offset starts at 0 in a queue that is still empty. RocketMQ answers 22, and a "
        "client that then starts at the end skips what is stored before it asks for the end",
        frozenset({"query_offset", "drain_offsets"}),
        r"(queue\[\d+\]\.)?(code|offset)",
        lambda found: (found.ours, found.theirs) in ((0, 22), (0, None)),
    ),
    Rule(
        "delay-bookkeeping",
        "A delivered message lacks the properties by which RocketMQ delays it: REAL_TOPIC, REAL_QID, "
        "TIMER_OUT_MS and DELAY. RocketMQ means to remove DELAY and writes a text that still has it",
        _READS,
        r".*\.properties\.(REAL_TOPIC|REAL_QID|DELAY|TIMER_OUT_MS)",
        lambda found: found.ours == ABSENT or (found.theirs == ABSENT and _is_exchanged(found)),
    ),
    Rule(
        "origin-message-id",
        "The origin of a message that was sent back is its unique id, which survives a move of the message; "
        "RocketMQ's is its place in one broker's log",
        _READS,
        r".*\.properties\.ORIGIN_MESSAGE_ID",
        lambda found: len(str(found.theirs)) == 32 or _is_exchanged(found),
    ),
    Rule(
        "dead-letter-origin",
        "A dead letter has the properties that RocketMQ defines for its origin and never writes",
        _READS,
        r".*\.properties\.DLQ_ORIGIN_(TOPIC|MESSAGE_ID)",
        lambda found: found.theirs == ABSENT or (found.ours == ABSENT and _is_exchanged(found)),
    ),
    Rule(
        "reconsume-property",
        "How often a message was sent back is a property as well as the record's field, which is equal",
        _READS,
        r".*\.properties\.RECONSUME_TIME",
        lambda found: found.theirs == ABSENT or (found.ours == ABSENT and _is_exchanged(found)),
    ),
    Rule(
        "deleted-messages-by-key",
        "Queries by key find no messages of a topic that was deleted; RocketMQ's index still has them when a "
        "topic with the same name exists",
        frozenset({"query_key"}),
        "bodies|code",
        lambda found: (
            _is_recreated(found)
            and (
                set(found.all_ours["bodies"]) < set(found.all_theirs["bodies"])
                or (_is_exchanged(found) and set(found.all_theirs["bodies"]) < set(found.all_ours["bodies"]))
            )
        ),
    ),
    Rule(
        "keys-after-a-kill",
        "After a kill RocketMQ deletes index files that are newer than the checkpoint",
        frozenset({"query_key"}),
        "bodies|code",
        lambda found: (
            _is_read_after_a_kill(found) and set(found.all_theirs["bodies"]) < set(found.all_ours["bodies"])
        ),
    ),
    Rule(
        "retry-topic-on-demand",
        "A message that becomes a dead letter creates no retry topic, only the topic of dead letters",
        frozenset({"drain"}),
        r"queue\[0\]\.code",
        lambda found: (
            "%RETRY%" in found.step.args["topic"]
            and (
                (found.ours, found.theirs) == (17, 19)
                or ((found.ours, found.theirs) == (19, 17) and _is_exchanged(found))
            )
        ),
    ),
    Rule(
        "transaction-marks",
        "A committed message does not show that it was a half: no type in sysFlag with the replicated store, "
        "no TRAN_MSG with the classic one, so that a copy of it is no half; and no count of checks. "
        "__transactionId__ is our own id",
        _READS,
        r".*\.(properties\.(TRAN_MSG|TRANSACTION_CHECK_TIMES|__HALF_SINCE|__transactionId__)|sysFlag)",
        lambda found: (
            (found.ours, found.theirs) in ((ABSENT, "true"), (0, 8))
            or ((found.theirs, found.ours) in ((ABSENT, "true"), (0, 8)) and _is_exchanged(found))
            or found.path.endswith(("Id__", "CHECK_TIMES"))
            # RocketMQ has committed our half.
            or (found.path.endswith("__HALF_SINCE") and _is_exchanged(found))
        ),
    ),
)


def split(
    found: Iterable[Difference], rules: Iterable[Rule] = RULES
) -> tuple[list[Difference], Counter[tuple[str, str]]]:
    """The differences that no rule accepts, and how many each rule accepted, by (rule, store)."""
    rules = tuple(rules)
    failures: list[Difference] = []
    accepted: Counter[tuple[str, str]] = Counter()
    for difference in found:
        rule = next((one for one in rules if one.matches(difference)), None)
        if rule is None:
            failures.append(difference)
        else:
            accepted[rule.name, difference.store] += 1
    return failures, accepted
