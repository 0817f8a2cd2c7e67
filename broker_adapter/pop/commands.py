"""What changes the state of delivery, one element each; many of them travel in one command.

An element is judged when it is applied, in the order of the log and by the store stamp of its record: what
the leader knew when it wrote it may be over by then. Each gets an outcome of its own.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

#: The topic whose records carry the commands. It appears in no ConsumeQueue.
DELIVERY_TOPIC = "DLEDGER_SYS_DELIVERY"
#: Of one command: `pop` numbers are made of its index and the place of the element in it.
MAX_ELEMENTS = 1 << 16
#: One Pop moves a cursor by no more. Every node judges by it, so it is part of the format.
MAX_SPAN = 1 << 20


class QueueKey(NamedTuple):
    """One queue as one group sees it."""

    group: str
    topic: str
    queue_id: int


class Pop(NamedTuple):
    """Give messages of a queue to a consumer for a time.

    `fresh` are offsets of [begin, end), which moves the cursor from `begin` to `end`: the others there are
    passed over. `again` are (offset, pop) of such as were given before and are visible again. `repeats`: the
    same call once more, which gets again what it has, as the same attempt. `is_orderly`: only if nothing of
    the queue is invisible. `first_from_state`: a queue that is new to the group begins at the group's offset
    when this is applied, and not at `begin`, as it did in older logs.
    """

    key: QueueKey
    client_id: str
    attempt_id: str
    invisible_ms: int
    renews: bool  # by the master, as long as the client is heard of
    is_orderly: bool
    repeats: bool
    begin: int
    end: int
    fresh: tuple[int, ...]
    again: tuple[tuple[int, int], ...]
    first_from_state: bool = False


class Ack(NamedTuple):
    """Done, if it was popped under this pop."""

    key: QueueKey
    offset: int
    pop: int


class Drop(NamedTuple):
    """Done, also if the time is over: it went to the dead letters, was purged, or is not wanted."""

    key: QueueKey
    offset: int
    pop: int


class Bury(NamedTuple):
    """Take a message away from whoever holds it under this pop, also if its time is over: it is on its way to
    the dead letters. It gets a new pop, which nobody is told, so that nothing but the Drop that comes with
    the letter ends it; after `invisible_ms` it may be given again."""

    key: QueueKey
    offset: int
    pop: int
    invisible_ms: int


class PassedOn(NamedTuple):
    """What was given under this pop has reached its client: from now on it may be renewed."""

    key: QueueKey
    pop: int
    offsets: tuple[int, ...]


class Purged(NamedTuple):
    """What is below this offset of a queue is in the log no more: all groups are done with it."""

    topic: str
    queue_id: int
    below: int


class Fold(NamedTuple):
    """Put the cursor back behind up to `most` messages right before it that are all pending, and all visible
    again for `idle_ms` at least: nobody uses the group, and they take room of others."""

    key: QueueKey
    idle_ms: int
    most: int


class ChangeKind(IntEnum):
    CHANGE = 0  # asked for by the consumer: a new pop
    RENEW = 1  # the pop stays, and with it the handle
    RETURN = 2  # the pop stays; it reached nobody and is no attempt
    RELEASE = 3  # the pop stays; the client went, and nobody renews it


class Change(NamedTuple):
    """Another time, from now on, for what was popped under it."""

    key: QueueKey
    offset: int
    pop: int
    invisible_ms: int
    kind: ChangeKind = ChangeKind.CHANGE


class SentId(NamedTuple):
    """Where the message with this id was stored; `digest` is that of topic and id. queue_id -1: it is
    deferred, and the offset its number."""

    digest: bytes  # 16
    queue_id: int
    queue_offset: int


class Sent(NamedTuple):
    """Ids of messages of the same append."""

    ids: tuple[SentId, ...]


class DeferredKind(IntEnum):
    DELAYED = 0
    HALF = 1


class Defer(NamedTuple):
    """Keep a message that is in no queue yet: until its time, or until its transaction ends."""

    kind: DeferredKind
    topic: str
    queue_id: int  # where it comes one day
    due_ms: int  # of the delivery; of a half: when to ask for the first time
    digest: bytes  # 16, b"" without an id
    message_id: str
    client_id: str
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes  # address and 4 bytes of port; b"" if nobody told
    properties: str
    body: bytes


class Carried(NamedTuple):
    """A delayed message again, under the number that it has: the log may forget the entry that it was in."""

    deferred_id: int
    defer: Defer


class Ending(IntEnum):
    """What became of a deferred message."""

    MOVED = 0  # into its queue, in the same append
    COMMITTED = 1  # so, by its transaction
    ROLLED_BACK = 2
    RECALLED = 3


class End(NamedTuple):
    deferred_id: int
    ending: Ending


class Checked(NamedTuple):
    """The producer of a half message was asked; again then."""

    deferred_id: int
    next_ms: int


class SystemOffset(NamedTuple):
    """The broker itself has read a queue of its own up to here: delayed or half messages, say. It only
    grows."""

    topic: str
    queue_id: int
    offset: int


class SystemQueueEnd(NamedTuple):
    """A queue of the broker's own ends here, so it was not read further: whoever said so had a longer log."""

    topic: str
    queue_id: int
    end: int


class Unknown(NamedTuple):
    """What a newer node has written: of no effect here."""

    kind: int


Element = (
    Pop
    | Ack
    | Drop
    | Bury
    | PassedOn
    | Purged
    | Fold
    | Change
    | Sent
    | Defer
    | Carried
    | End
    | Checked
    | SystemOffset
    | SystemQueueEnd
    | Unknown
)


class Popped(NamedTuple):
    """Outcome of a Pop: what was given, as (offset, attempt), until when."""

    pop: int
    invisible_until_ms: int
    given: tuple[tuple[int, int], ...]
    is_fresh_given: bool  # the cursor was at `begin`


class Changed(NamedTuple):
    """Outcome of a Change or a Bury that was done."""

    pop: int
    invisible_until_ms: int


class Deferred(NamedTuple):
    """Outcome of a Defer: its number."""

    deferred_id: int


#: bool: whether an Ack, Drop, End, Carried, Checked or SystemOffset was done; int: how many messages a Fold
#: has put back. None: not done, or nothing to say.
Outcome = Popped | Changed | Deferred | bool | int | None
