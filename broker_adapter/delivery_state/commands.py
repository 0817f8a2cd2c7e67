"""Elements that change the delivery state; one command carries many of them.

The state machine decides about an element when it applies it, in log order and by the store stamp of its
record, because the leader's view at the time of writing may be outdated. Each element has its own outcome.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from broker_adapter.delivery_state.duplicate_filter import SendIdentity
from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.longs import LONGS
from broker_adapter.wire.topic_names import HALF_TOPIC, MAX_TOPIC_LENGTH, OP_TOPIC

# Topic of the records that carry commands. It appears in no ConsumeQueue.
DELIVERY_TOPIC = "DLEDGER_SYS_DELIVERY"
# Maximum number of elements per command. The number of a pop consists of the command's index and the position
# of the element in it.
MAX_ELEMENTS = 1 << 16
# Maximum number of system queues with an offset. Part of the state's rules.
MAX_SYSTEM_QUEUES = 1_024
# Maximum advance of a cursor by one Pop. Every node checks it, so it is part of the format.
MAX_SPAN = 1 << 20


class QueueKey(NamedTuple):
    """A queue of a topic, as consumed by one group."""

    group: str
    topic: str
    queue_id: int


class Pop(NamedTuple):
    """Deliver messages of a queue to a consumer for a time.

    `begin`, `end`: the queue's cursor before and after the Pop. `fresh`: offsets of the new messages to
    deliver; the Pop skips the other offsets between the two cursors. `again`: (offset, pop) pairs of messages
    that were delivered before and are visible again. `repeats`: the call is repeated and gets its messages
    again, as the same attempt. `is_orderly`: the Pop succeeds only if no message of the queue is invisible.
    `first_from_state`: a queue that is new to the group starts at the group's offset at apply time.
    Otherwise, as in older logs, it starts at `begin`.
    """

    key: QueueKey
    client_id: str
    attempt_id: str
    invisible_ms: int
    renews: bool  # the master renews the messages while the client is alive
    is_orderly: bool
    repeats: bool
    begin: int
    end: int
    fresh: tuple[int, ...]
    again: tuple[tuple[int, int], ...]
    first_from_state: bool = False


class Ack(NamedTuple):
    """Remove a message that was received in this pop and is still invisible."""

    key: QueueKey
    offset: int
    pop: int


class Drop(NamedTuple):
    """Remove a message even if it is visible again.

    It became a dead letter, was purged, or does not match the filter.
    """

    key: QueueKey
    offset: int
    pop: int


class Bury(NamedTuple):
    """Revoke a message from the holder of this pop, even if it is visible again, to make it a dead letter.

    The message gets a new pop that no client knows, so only the Drop in the append of the dead letter removes
    it. If no Drop is applied within `invisible_ms`, the message may be delivered again.
    """

    key: QueueKey
    offset: int
    pop: int
    invisible_ms: int


class ConfirmReceipt(NamedTuple):
    """Record that the client received messages of this pop. From now on they may be renewed."""

    key: QueueKey
    pop: int
    offsets: tuple[int, ...]


class PurgeBelow(NamedTuple):
    """In all groups, drop the pending messages of a queue below this offset, which are purged."""

    topic: str
    queue_id: int
    below: int


class Fold(NamedTuple):
    """Move the cursor back over up to `most` pending messages, which are then no longer pending. Used for
    idle groups.

    Stops at the first message before the cursor that is not pending, or that has been visible again for less
    than `idle_ms`.
    """

    key: QueueKey
    idle_ms: int
    most: int


class ChangeKind(IntEnum):
    CHANGE = 0  # requested by the consumer: a new pop
    RENEW = 1  # the pop and its handle stay valid
    RETURN = 2  # the pop stays valid; not counted as an attempt, because it was not delivered
    RELEASE = 3  # the pop stays valid; renewals stop because the client left


class ChangeVisibility(NamedTuple):
    """Set the invisible time of a message of this pop, counted from now."""

    key: QueueKey
    offset: int
    pop: int
    invisible_ms: int
    kind: ChangeKind = ChangeKind.CHANGE


class StoredId(NamedTuple):
    """The position at which a send was stored. For negative queue ids, see `duplicate_filter`.

    The offset of a deferred message is the position of its `Defer` in the same command.
    """

    identity: SendIdentity
    queue_id: int
    queue_offset: int


class StoredIds(NamedTuple):
    """The identities of sends whose messages are in the same append."""

    ids: tuple[StoredId, ...]
    steps_ms: int = 0  # total of the steps of cluster time so far, during which ids and pops do not age


class RecordAttempt(NamedTuple):
    """Record an attempt that repeated a deferred message, or a half message of the classic store.

    The outcome is False if the message has ended meanwhile without being stored in a queue.
    """

    identity: SendIdentity
    queue_id: int
    queue_offset: int


class EndHalfId(NamedTuple):
    """Mark the send of a half message in the classic store as ended, after a rollback or the last check."""

    id_digest: bytes  # 16 bytes, of topic and id
    born_ms: int
    queue_offset: int  # offset of the first copy; -1: unknown


class SentId(NamedTuple):
    """The id of a send as written by 0.1.0, which did not record the content. `digest` covers topic and id.

    queue_id -1 marks a deferred message, whose number is in `queue_offset`.
    """

    digest: bytes  # 16
    queue_id: int
    queue_offset: int


class SentIds(NamedTuple):
    """The ids of messages in the same append, as written by 0.1.0."""

    ids: tuple[SentId, ...]


class DeferredKind(IntEnum):
    DELAYED = 0
    HALF = 1


class Defer(NamedTuple):
    """Store a message that enters its queue at its due time or at the end of its transaction."""

    kind: DeferredKind
    topic: str
    queue_id: int  # destination
    due_ms: int  # time of delivery, or of the first check of a half message
    digest: bytes  # 16 bytes, of topic and id, in commands of 0.1.0; otherwise b"", and `StoredIds` follow
    message_id: str
    client_id: str
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes  # address and 4-byte port; b"" if unknown
    properties: str
    body: bytes


class Carry(NamedTuple):
    """Store a delayed message again under its number, so that the log can purge its old entry."""

    deferred_id: int
    defer: Defer


class Ending(IntEnum):
    """The final state of a deferred message."""

    MOVED = 0  # to its queue, in the same append
    COMMITTED = 1  # to its queue, by its transaction
    ROLLED_BACK = 2
    RECALLED = 3


class EndDeferred(NamedTuple):
    deferred_id: int
    ending: Ending


class RecordCheck(NamedTuple):
    """Record a check of a half message's producer, and the time of the next check."""

    deferred_id: int
    next_ms: int


class SystemOffset(NamedTuple):
    """The broker's read offset in a system queue, for example of delayed or half messages.

    An element with a lower offset has no effect.
    """

    topic: str
    queue_id: int
    offset: int


def refusal_of_system_offset(one: SystemOffset) -> BrokerError | None:
    """Return the error FIELD_OUT_OF_RANGE if the queue is unknown or the offset does not fit into an image;
    otherwise None.

    Delay levels beyond the default ones are permitted, because delayOffset.json may be from a RocketMQ with a
    longer `messageDelayLevel`.
    """
    queues = MAX_SYSTEM_QUEUES if one.topic == SCHEDULE_TOPIC else 1
    is_known = one.topic in (SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC)
    if is_known and 0 <= one.queue_id < queues and one.offset in LONGS and one.offset >= 0:
        return None
    queue = f"queue {one.queue_id} of {one.topic[:MAX_TOPIC_LENGTH]!r}"
    return error_for(Status.FIELD_OUT_OF_RANGE, f"{queue}, offset {one.offset}: no such queue or offset")


class SystemQueueEnd(NamedTuple):
    """The end of a system queue.

    A read offset beyond this end, written for a longer log, is reduced to it.
    """

    topic: str
    queue_id: int
    end: int


class UnknownElement(NamedTuple):
    """An element from a newer version. It has no effect on this node."""

    kind: int


Element = (
    Pop
    | Ack
    | Drop
    | Bury
    | ConfirmReceipt
    | PurgeBelow
    | Fold
    | ChangeVisibility
    | SentIds
    | StoredIds
    | RecordAttempt
    | EndHalfId
    | Defer
    | Carry
    | EndDeferred
    | RecordCheck
    | SystemOffset
    | SystemQueueEnd
    | UnknownElement
)


class PopOutcome(NamedTuple):
    """The outcome of a Pop.

    `given`: (offset, attempt) of each message. `invisible_until_ms`: cluster time without its steps.
    """

    pop: int
    invisible_until_ms: int
    given: tuple[tuple[int, int], ...]
    is_fresh_given: bool  # the cursor had not moved, so the new messages are delivered


class ChangeOutcome(NamedTuple):
    """The outcome of a successful ChangeVisibility or Bury."""

    pop: int
    invisible_until_ms: int


class DeferOutcome(NamedTuple):
    """The outcome of a Defer."""

    deferred_id: int


# bool: success of an Ack, Drop, EndDeferred, Carry, RecordCheck, RecordAttempt or SystemOffset. int: number
# of messages that a Fold returned. None: failure, or an element without a result.
Outcome = PopOutcome | ChangeOutcome | DeferOutcome | bool | int | None
