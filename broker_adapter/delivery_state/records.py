r"""Encoding of commands, which are the bodies of messages of the topic `DLEDGER_SYS_DELIVERY`.

    0    2    "DD"
    2    1    version, 1
    3    16   request id of the proposer's call that gets the outcomes; zeros: none
    19   2    number of texts, each 2+n; elements refer to groups, topics, clients by index
         5+n  elements up to the end: kind 1, payload size 4, payload

Kinds and their payloads (g, t, q: group 2, topic 2, queue id 4)::

    1 Pop      g t q, client 2, attempt id 2, invisible ms 8, flags 1 (1 renews, 2 orderly, 4 repeats,
               8 first offset from the state), begin 8, end 8, number of fresh 4, then each
               offset 8; up to the end (offset 8, pop 8) of messages given again
    2 Ack, 3 Drop   g t q, offset 8, pop 8
    4 ChangeVisibility  g t q, offset 8, pop 8, invisible ms 8, kind 1 (0 change, 1 renew, 2 return,
               3 release)
    5 SentIds  up to the end: digest 16, queue id 4, queue offset 8 (0.1.0 wrote it)
    6 Defer     kind 1 (0 delayed, 1 half), topic 2, queue id 4, due 8, message id 2, client 2, flag 4,
               sys_flag 4, born 8, then with 1 byte of length: digest (0.1.0 wrote it), born host; with 4:
               properties; the body
    7 EndDeferred  number 8, ending 1 (0 moved, 1 committed, 2 rolled back, 3 recalled)
    8 RecordCheck  number 8, next check 8
    9 Bury     g t q, offset 8, pop 8, invisible ms 8
    10 ConfirmReceipt  g t q, pop 8; up to the end offsets 8
    11 PurgeBelow  topic 2, queue id 4, below 8
    12 Fold    g t q, idle ms 8, most 4
    13 Carry   number 8, then as Defer
    14 SystemOffset  topic 2, queue id 4, offset 8
    15 SystemQueueEnd  topic 2, queue id 4, end 8
    16 StoredIds  steps of cluster time, ms in all 8; up to the end: digest of topic and id 16, of the
               content 16, born 8, queue id 4, queue offset 8
    17 EndHalfId  digest of topic and id 16, born 8, queue offset 8
    18 RecordAttempt  as an id of StoredIds

(big endian; signed except lengths, counts and indexes) A node skips unknown versions and kinds, which newer
nodes write. Other deviations from this layout are damage, and a damaged command changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from broker_adapter.delivery_state.commands import (
    MAX_ELEMENTS,
    MAX_SPAN,
    Ack,
    Bury,
    Carry,
    ChangeKind,
    ChangeVisibility,
    ConfirmReceipt,
    Defer,
    DeferredKind,
    Drop,
    Element,
    EndDeferred,
    EndHalfId,
    Ending,
    Fold,
    Pop,
    PurgeBelow,
    QueueKey,
    RecordAttempt,
    RecordCheck,
    SentId,
    SentIds,
    StoredId,
    StoredIds,
    SystemOffset,
    SystemQueueEnd,
    UnknownElement,
)
from broker_adapter.delivery_state.duplicate_filter import DELAYED, SendIdentity
from broker_adapter.errors import Status, StoredDataDamaged

MAGIC = b"DD"
VERSION = 1
REQUEST_ID_SIZE = 16
# The request id of a command without a waiting proposer.
NO_REQUEST = bytes(REQUEST_ID_SIZE)

_HEADER = struct.Struct(">2sB16sH")
_TEXT = struct.Struct(">H")
_ELEMENT = struct.Struct(">BI")
_POP = struct.Struct(">HHiHHqBqqI")
_HELD = struct.Struct(">HHiqq")
_CHANGE = struct.Struct(">HHiqqqB")
_SENT = struct.Struct(">16siq")
_STORED_ID = struct.Struct(">16s16sqiq")
_END_HALF_ID = struct.Struct(">16sqq")
_DEFER = struct.Struct(">BHiqHHiiq")
_END = struct.Struct(">qB")
_CHECKED = struct.Struct(">qq")
_PAIR = struct.Struct(">qq")
_SIZE = struct.Struct(">I")
_NUMBER = struct.Struct(">q")
_BURY = struct.Struct(">HHiqqq")
_PASSED_ON = struct.Struct(">HHiq")
_PURGED = struct.Struct(">Hiq")
_FOLD = struct.Struct(">HHiqi")
_RENEWS, _ORDERLY, _REPEATS, _FIRST_FROM_STATE = 1, 2, 4, 8
_DIGEST_SIZES, _HOST_SIZES = (0, 16), (0, 8, 20)
# Maximum time in milliseconds. The sum of two times fits its field.
_MOST_MS = 1 << 62

_POP_KIND, _ACK_KIND, _DROP_KIND, _CHANGE_KIND, _SENT_KIND, _DEFER_KIND, _END_KIND = range(1, 8)
_CHECKED_KIND, _BURY_KIND, _PASSED_ON_KIND, _PURGED_KIND, _FOLD_KIND, _CARRIED_KIND = range(8, 14)
_SYSTEM_OFFSET_KIND, _SYSTEM_QUEUE_END_KIND, _STORED_IDS_KIND, _END_HALF_ID_KIND = 14, 15, 16, 17
_RECORD_ATTEMPT_KIND = 18

# Bytes that `StoredIds` adds to a command, and bytes per id.
STORED_IDS_OVERHEAD, STORED_ID_SIZE = _ELEMENT.size + _NUMBER.size, _STORED_ID.size
# The size difference between a `Carry` and its `Defer`, in bytes.
CARRIED_OVERHEAD = 8


class Command(NamedTuple):
    request_id: bytes
    elements: list[Element]


def encode(elements: Sequence[Element], request_id: bytes = NO_REQUEST) -> bytes:
    """Encode a command. The result of `encode_stored_ids` may be appended."""
    if len(elements) > MAX_ELEMENTS or len(request_id) != REQUEST_ID_SIZE:
        raise ValueError(f"invalid command: {len(elements)} elements, request id {request_id!r}")
    texts: dict[str, int] = {}
    payload = b"".join([_encode_element(element, texts) for element in elements])
    pieces = [_HEADER.pack(MAGIC, VERSION, request_id, len(texts))]
    for text in texts:
        raw = text.encode()
        pieces += (_TEXT.pack(len(raw)), raw)
    pieces.append(payload)
    return b"".join(pieces)


def encode_stored_ids(stored: StoredIds) -> bytes:
    """Encode an element that may follow a command.

    Its size is STORED_IDS_OVERHEAD bytes plus STORED_ID_SIZE per id.
    """
    payload = [_STORED_ID.pack(*one.identity, *one[1:]) for one in stored.ids]
    return _framed(_STORED_IDS_KIND, b"".join((_NUMBER.pack(stored.steps_ms), *payload)))


def decode(data: bytes) -> Command | None:
    """Decode a command. Return None if its version is unknown. Raises StoredDataDamaged (COMMAND_DAMAGED)."""
    try:
        magic, version, request_id, count = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise ValueError(f"unexpected magic {magic!r}")
        if version != VERSION:
            return None
        at = _HEADER.size
        texts = []
        for _ in range(count):
            (size,) = _TEXT.unpack_from(data, at)
            at += _TEXT.size
            texts.append(_slice(data, at, size).decode())
            at += size
        elements: list[Element] = []
        while at < len(data):
            kind, size = _ELEMENT.unpack_from(data, at)
            at += _ELEMENT.size
            elements.append(_decode_element(kind, _slice(data, at, size), texts))
            at += size
        if len(elements) > MAX_ELEMENTS:
            raise ValueError(f"the command has {len(elements)} elements; the limit is {MAX_ELEMENTS}")
    except (ValueError, IndexError, struct.error) as error:
        text = f"not a delivery command: {type(error).__name__}: {str(error)[:200]}"
        raise StoredDataDamaged(Status.COMMAND_DAMAGED, text) from None
    return Command(request_id, elements)


def request_id_of(data: bytes) -> bytes:
    """Return the request id of a command, even if the rest is unreadable; NO_REQUEST if it has none."""
    try:
        magic, _, request_id, _ = _HEADER.unpack_from(data)
    except struct.error:
        return NO_REQUEST
    return bytes(request_id) if magic == MAGIC else NO_REQUEST


def _encode_element(element: Element, texts: dict[str, int]) -> bytes:
    match element:
        case Ack():
            return _framed(_ACK_KIND, _HELD.pack(*_places(element.key, texts), element.offset, element.pop))
        case Pop():
            return _framed(_POP_KIND, _encode_pop(element, texts))
        case Drop():
            return _framed(_DROP_KIND, _HELD.pack(*_places(element.key, texts), element.offset, element.pop))
        case ChangeVisibility(key, offset, pop, invisible_ms, kind):
            fields = _CHANGE.pack(*_places(key, texts), offset, pop, invisible_ms, kind)
            return _framed(_CHANGE_KIND, fields)
        case SentIds(ids):
            return _framed(_SENT_KIND, b"".join([_SENT.pack(*one) for one in ids]))
        case StoredIds():
            return encode_stored_ids(element)
        case EndHalfId():
            return _framed(_END_HALF_ID_KIND, _END_HALF_ID.pack(*element))
        case RecordAttempt(identity, queue_id, offset):
            return _framed(_RECORD_ATTEMPT_KIND, _STORED_ID.pack(*identity, queue_id, offset))
        case Defer():
            return _framed(_DEFER_KIND, _encode_defer(element, texts))
        case Carry(deferred_id, defer):
            return _framed(_CARRIED_KIND, _NUMBER.pack(deferred_id) + _encode_defer(defer, texts))
        case EndDeferred(deferred_id, ending):
            return _framed(_END_KIND, _END.pack(deferred_id, ending))
        case RecordCheck(deferred_id, next_ms):
            return _framed(_CHECKED_KIND, _CHECKED.pack(deferred_id, next_ms))
        case Bury(key, offset, pop, invisible_ms):
            return _framed(_BURY_KIND, _BURY.pack(*_places(key, texts), offset, pop, invisible_ms))
        case ConfirmReceipt(key, pop, offsets):
            head = _PASSED_ON.pack(*_places(key, texts), pop)
            return _framed(_PASSED_ON_KIND, head + struct.pack(f">{len(offsets)}q", *offsets))
        case PurgeBelow(topic, queue_id, below):
            return _framed(_PURGED_KIND, _PURGED.pack(_place(topic, texts), queue_id, below))
        case Fold(key, idle_ms, most):
            return _framed(_FOLD_KIND, _FOLD.pack(*_places(key, texts), idle_ms, most))
        case SystemOffset(topic, queue_id, offset):
            return _framed(_SYSTEM_OFFSET_KIND, _PURGED.pack(_place(topic, texts), queue_id, offset))
        case SystemQueueEnd(topic, queue_id, end):
            return _framed(_SYSTEM_QUEUE_END_KIND, _PURGED.pack(_place(topic, texts), queue_id, end))
    raise AssertionError(element)


def _encode_pop(pop: Pop, texts: dict[str, int]) -> bytes:
    flags = _RENEWS * pop.renews | _ORDERLY * pop.is_orderly | _REPEATS * pop.repeats
    flags |= _FIRST_FROM_STATE * pop.first_from_state
    head = _POP.pack(
        *_places(pop.key, texts),
        _place(pop.client_id, texts),
        _place(pop.attempt_id, texts),
        pop.invisible_ms,
        flags,
        pop.begin,
        pop.end,
        len(pop.fresh),
    )
    fresh = struct.pack(f">{len(pop.fresh)}q", *pop.fresh)
    return b"".join((head, fresh, *(_PAIR.pack(*one) for one in pop.again)))


def _encode_defer(defer: Defer, texts: dict[str, int]) -> bytes:
    properties = defer.properties.encode()
    head = _DEFER.pack(
        defer.kind,
        _place(defer.topic, texts),
        defer.queue_id,
        defer.due_ms,
        _place(defer.message_id, texts),
        _place(defer.client_id, texts),
        defer.flag,
        defer.sys_flag,
        defer.born_ms,
    )
    lengths = bytes((len(defer.digest),)), bytes((len(defer.born_host),)), _SIZE.pack(len(properties))
    return b"".join(
        (head, lengths[0], defer.digest, lengths[1], defer.born_host, lengths[2], properties, defer.body)
    )


def _decode_element(kind: int, data: bytes, texts: Sequence[str]) -> Element:
    if kind in (_ACK_KIND, _DROP_KIND):
        group, topic, queue_id, offset, pop = _HELD.unpack(data)
        key = QueueKey(texts[group], texts[topic], queue_id)
        return Ack(key, offset, pop) if kind == _ACK_KIND else Drop(key, offset, pop)
    if kind == _POP_KIND:
        return _decode_pop(data, texts)
    if kind == _CHANGE_KIND:
        group, topic, queue_id, offset, pop, invisible_ms, how = _CHANGE.unpack(data)
        _check_ms(invisible_ms)
        return ChangeVisibility(
            QueueKey(texts[group], texts[topic], queue_id), offset, pop, invisible_ms, ChangeKind(how)
        )
    if kind == _SENT_KIND:
        return SentIds(tuple([SentId(*one) for one in _SENT.iter_unpack(data)]))
    if kind == _DEFER_KIND:
        return _decode_defer(data, texts)
    if kind == _END_KIND:
        deferred_id, ending = _END.unpack(data)
        return EndDeferred(deferred_id, Ending(ending))
    if kind == _CHECKED_KIND:
        deferred_id, next_ms = _CHECKED.unpack(data)
        _check_ms(next_ms)
        return RecordCheck(deferred_id, next_ms)
    return _decode_newer(kind, data, texts)


def _decode_newer(kind: int, data: bytes, texts: Sequence[str]) -> Element:
    """Decode the kinds of elements that the first version of delivery did not have."""
    if kind == _BURY_KIND:
        group, topic, queue_id, offset, pop, invisible_ms = _BURY.unpack(data)
        _check_ms(invisible_ms)
        return Bury(QueueKey(texts[group], texts[topic], queue_id), offset, pop, invisible_ms)
    if kind == _PASSED_ON_KIND:
        group, topic, queue_id, pop = _PASSED_ON.unpack_from(data)
        offsets = struct.unpack(f">{(len(data) - _PASSED_ON.size) // 8}q", data[_PASSED_ON.size :])
        return ConfirmReceipt(QueueKey(texts[group], texts[topic], queue_id), pop, offsets)
    if kind == _PURGED_KIND:
        topic, queue_id, below = _PURGED.unpack(data)
        return PurgeBelow(texts[topic], queue_id, below)
    if kind == _FOLD_KIND:
        group, topic, queue_id, idle_ms, most = _FOLD.unpack(data)
        _check_ms(idle_ms)
        return Fold(QueueKey(texts[group], texts[topic], queue_id), idle_ms, most)
    if kind == _CARRIED_KIND:
        (deferred_id,) = _NUMBER.unpack_from(data)
        return Carry(deferred_id, _decode_defer(data[_NUMBER.size :], texts))
    if kind in (_SYSTEM_OFFSET_KIND, _SYSTEM_QUEUE_END_KIND):
        topic, queue_id, offset = _PURGED.unpack(data)
        if queue_id < 0 or offset < 0:
            raise ValueError(f"queue {queue_id} or offset {offset} is negative")
        element = SystemOffset if kind == _SYSTEM_OFFSET_KIND else SystemQueueEnd
        return element(texts[topic], queue_id, offset)
    if kind == _STORED_IDS_KIND:
        (steps_ms,) = _NUMBER.unpack_from(data)
        _check_ms(steps_ms)
        found = list(_STORED_ID.iter_unpack(data[_NUMBER.size :]))
        if min((one[3] for one in found), default=0) < DELAYED:
            raise ValueError(f"an id is stored in a queue below {DELAYED}")
        return StoredIds(tuple([StoredId(SendIdentity(*one[:3]), *one[3:]) for one in found]), steps_ms)
    if kind == _END_HALF_ID_KIND:
        return EndHalfId(*_END_HALF_ID.unpack(data))
    if kind == _RECORD_ATTEMPT_KIND:
        *identity, queue_id, offset = _STORED_ID.unpack(data)
        return RecordAttempt(SendIdentity(*identity), queue_id, offset)
    return UnknownElement(kind)


def _decode_pop(data: bytes, texts: Sequence[str]) -> Pop:
    group, topic, queue_id, client, attempt, invisible_ms, flags, begin, end, count = _POP.unpack_from(data)
    at = _POP.size + 8 * count
    fresh = struct.unpack_from(f">{count}q", data, _POP.size)
    if not 0 <= begin <= end <= begin + MAX_SPAN or any(not begin <= offset < end for offset in fresh):
        raise ValueError(f"fresh offsets are outside [{begin}, {end})")
    _check_ms(invisible_ms)
    return Pop(
        QueueKey(texts[group], texts[topic], queue_id),
        texts[client],
        texts[attempt],
        invisible_ms,
        bool(flags & _RENEWS),
        bool(flags & _ORDERLY),
        bool(flags & _REPEATS),
        begin,
        end,
        fresh,
        tuple(_PAIR.iter_unpack(data[at:])),
        bool(flags & _FIRST_FROM_STATE),
    )


def _decode_defer(data: bytes, texts: Sequence[str]) -> Defer:
    kind, topic, queue_id, due_ms, message_id, client, flag, sys_flag, born_ms = _DEFER.unpack_from(data)
    at = _DEFER.size
    digest = _slice(data, at + 1, data[at])
    at += 1 + len(digest)
    born_host = _slice(data, at + 1, data[at])
    at += 1 + len(born_host)
    if len(digest) not in _DIGEST_SIZES or len(born_host) not in _HOST_SIZES:
        raise ValueError(f"invalid sizes: digest {len(digest)} bytes, born host {len(born_host)} bytes")
    _check_ms(due_ms)
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    properties = _slice(data, at, size).decode()
    return Defer(
        DeferredKind(kind),
        texts[topic],
        queue_id,
        due_ms,
        digest,
        texts[message_id],
        texts[client],
        flag,
        sys_flag,
        born_ms,
        born_host,
        properties,
        data[at + size :],
    )


def _check_ms(time_ms: int) -> None:
    if not 0 <= time_ms < _MOST_MS:
        raise ValueError(f"time {time_ms} ms is out of range")


def _framed(kind: int, payload: bytes) -> bytes:
    return _ELEMENT.pack(kind, len(payload)) + payload


def _places(key: QueueKey, texts: dict[str, int]) -> tuple[int, int, int]:
    return _place(key.group, texts), _place(key.topic, texts), key.queue_id


def _place(text: str, texts: dict[str, int]) -> int:
    return texts.setdefault(text, len(texts))


def _slice(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) != size:
        raise ValueError(f"expected {size} bytes at position {at}, but the data ends at {len(data)}")
    return found
