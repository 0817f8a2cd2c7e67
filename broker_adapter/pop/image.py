"""The bytes of the whole state of delivery, as the state image and the checkpoint hold it.

    0    4    "DDSI"
    4    1    version, 5; 1 to 4 are read, and 6 of a checkpoint
    5    4    CRC32 of all that follows
    9    8    applied index
         4    number of texts, and of each: 2+n
         4    number of queues, sorted, and of each: group 4, topic 4 (places of texts), queue id 4, cursor 8,
              number of segments 4, and of each: size 4, bytes (`queue_state.QueueDelivery.encoded`)
         4    number of deferred messages, and of each: number 8, due 8, checks 4, size 4, its command
         4    number of delayed messages that the log has, in its order, and of each: number 8, due 8, topic 4
              (place of a text), position of its entry 8, size of the entry's body 4, place in its command 2
         4    number of ends, and of each: number 8, ending 1, stamp 8, topic 4 (place of a text)
         4    number of queues of the broker's own, sorted, and of each: topic 4 (place of a text),
              queue id 4, offset 8
         4    number of ids, and of each: digest 16, queue id 4, queue offset 8, stamp 8

(big endian) Equal states have equal bytes. Version 6 is that of a checkpoint beside an index: instead of the
delayed messages that the log has it holds their number 8, the sum of their CRC32 8, and the number of the
index's last change 8. Before version 5 there are no
queues of the broker's own. Before version 4 all deferred messages have their commands there.
Before version 3 an end has no topic. In version 1 a queue has, instead of segments, the number of its pending
messages 4, and of each what a segment has, with places of the texts of all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.pop.commands import Defer, DeferredKind, Ending, QueueKey, SystemOffset
from broker_adapter.pop.deferred_messages import (
    DeferredMessage,
    DeferredMessages,
    Ended,
    IndexMark,
    LogPosition,
)
from broker_adapter.pop.duplicate_filter import DuplicateFilter
from broker_adapter.pop.queue_state import PENDING, PoppedMessage, QueueDelivery
from broker_adapter.pop.records import decode
from broker_adapter.pop.state import DeliveryState

MAGIC = b"DDSI"
VERSION = 5
_WITH_INDEX = 6
_WITHOUT_SYSTEM_OFFSETS = 4
_WITH_ALL_COMMANDS = 3
_WITHOUT_TOPICS_OF_ENDS = 2
_WITHOUT_SEGMENTS = 1

_HEADER = struct.Struct(">4sBI")
_APPLIED = struct.Struct(">q")
_COUNT = struct.Struct(">I")
_TEXT = struct.Struct(">H")
_QUEUE = struct.Struct(">IIiqI")
_SEGMENT = struct.Struct(">I")
_DEFERRED = struct.Struct(">qqiI")
_IN_LOG = struct.Struct(">qqIqIH")
_MARK = struct.Struct(">qQq")
_SYSTEM_OFFSET = struct.Struct(">Iiq")
_ENDED = struct.Struct(">qBq")
_ID_SIZE = 36


def save(state: DeliveryState) -> bytes:
    """All of it. On the applying thread."""
    return _save(state, None)


def checkpoint(state: DeliveryState) -> tuple[bytes, IndexMark | None]:
    """For this node: all but what the index has. None: it has no index. On the applying thread. OSError."""
    mark = state.mark_index() if state.has_index else None
    return _save(state, mark), mark


def _save(state: DeliveryState, mark: IndexMark | None) -> bytes:
    texts: dict[str, int] = {}
    queues = [_queue(queue, texts) for queue in state.sorted_queues()]
    deferred = [_deferred(deferred_id, message) for deferred_id, message in state.deferred.whole()]
    if mark is None:
        in_log = [_COUNT.pack(state.deferred.delayed_count), *_in_log(state.deferred, texts)]
    else:
        in_log = [_MARK.pack(*mark)]
    ends = [_ended(ended, texts) for ended in state.deferred.ends()]
    system_offsets = [
        _SYSTEM_OFFSET.pack(texts.setdefault(topic, len(texts)), queue_id, offset)
        for (topic, queue_id), offset in sorted(state.system_offsets().items())
    ]
    ids = state.ids.save()
    raw_texts = [text.encode() for text in texts]
    pieces = [
        _APPLIED.pack(state.applied_index),
        _COUNT.pack(len(raw_texts)),
        *[_TEXT.pack(len(raw)) + raw for raw in raw_texts],
        _COUNT.pack(len(queues)),
        *queues,
        _COUNT.pack(len(deferred)),
        *deferred,
        *in_log,
        _COUNT.pack(len(ends)),
        *ends,
        _COUNT.pack(len(system_offsets)),
        *system_offsets,
        _COUNT.pack(len(ids) // _ID_SIZE),
        ids,
    ]
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    version = VERSION if mark is None else _WITH_INDEX
    return b"".join((_HEADER.pack(MAGIC, version, crc), *pieces))


def restore(state: DeliveryState, data: bytes) -> IndexMark | None:
    """Take over what `checkpoint` gave, and what the index has of it; the mark of that, None if there was no
    index. On the applying thread. StoredDataDamaged (METADATA_DAMAGED), OSError: `load` has to follow."""
    header = data[: _HEADER.size]
    if len(header) < _HEADER.size or _HEADER.unpack(header)[1] != _WITH_INDEX:
        load(state, data)
        return None
    found = state.beside()
    mark = _read(found, data, _WITH_INDEX)
    state.take(found)
    return mark


def load(state: DeliveryState, image: bytes) -> None:
    """Forget everything and take over what `save` gave; nothing: the empty state. On the applying thread.

    StoredDataDamaged (METADATA_DAMAGED) if it is not that; the state is empty then.
    """
    state.clear()
    if not image:
        return
    found = state.beside()
    try:
        _read(found, image, VERSION)
    except StoredDataDamaged:
        state.clear()
        raise
    state.take(found)


def _read(state: DeliveryState, data: bytes, newest: int) -> IndexMark | None:
    """StoredDataDamaged (METADATA_DAMAGED) if it is none up to this version."""
    try:
        magic, version, crc = _HEADER.unpack_from(data)
        payload = memoryview(data)[_HEADER.size :]
        if magic != MAGIC or not _WITHOUT_SEGMENTS <= version <= newest or crc32(payload) != crc:
            raise ValueError(f"magic {magic!r}, version {version}, or another checksum")
        return _Reader(payload).read(state, version)
    except (ValueError, IndexError, struct.error, StoredDataDamaged) as error:
        text = f"no image of delivery: {type(error).__name__}: {str(error)[:200]}"
        raise StoredDataDamaged(Status.METADATA_DAMAGED, text) from None


def _queue(queue: QueueDelivery, texts: dict[str, int]) -> bytes:
    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    key, segments = queue.key, list(queue.encoded())
    pieces = [_QUEUE.pack(place(key.group), place(key.topic), key.queue_id, queue.cursor, len(segments))]
    for segment in segments:
        pieces += (_SEGMENT.pack(len(segment)), segment)
    return b"".join(pieces)


def _deferred(deferred_id: int, message: DeferredMessage) -> bytes:
    return _DEFERRED.pack(deferred_id, message.due_ms, message.checks, len(message.command)) + message.command


def _in_log(messages: DeferredMessages, texts: dict[str, int]) -> Iterator[bytes]:
    """There may be many: a piece for each page of them."""
    place_of = {name: texts.setdefault(name, len(texts)) for name in messages.topics_in_log()}
    pack = _IN_LOG.pack
    for page in messages.pages():
        yield b"".join(
            pack(row.number, row.due_ms, place_of[row.topic], row.pos, row.size, row.element) for row in page
        )


def _ended(ended: Ended, texts: dict[str, int]) -> bytes:
    place = texts.setdefault(ended.topic, len(texts))
    return _ENDED.pack(ended.deferred_id, ended.ending, ended.stamp_ms) + _COUNT.pack(place)


class _Reader:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, state: DeliveryState, version: int) -> IndexMark | None:
        (state.applied_index,) = self._take(_APPLIED)
        texts = self._texts()
        for _ in range(self._count()):
            group, topic, queue_id, cursor, count = self._take(_QUEUE)
            queue = QueueDelivery(QueueKey(texts[group], texts[topic], queue_id), cursor)
            if version > _WITHOUT_SEGMENTS:
                pending = [one for _ in range(count) for one in self._segment()]
            else:
                pending = [self._pending(texts) for _ in range(count)]
            state.restore(queue, pending)
        for _ in range(self._count()):
            deferred_id, due_ms, checks, size = self._take(_DEFERRED)
            command = decode(self._bytes(size))
            if command is None or len(command.elements) != 1 or not isinstance(command.elements[0], Defer):
                raise ValueError(f"no deferred message {deferred_id}")
            message = DeferredMessage.of(command.elements[0])
            state.deferred.put(deferred_id, message._replace(due_ms=due_ms, checks=checks))
        mark = None
        if version == _WITH_INDEX:
            mark = IndexMark(*self._take(_MARK))
            state.deferred.restore(mark)
        elif version > _WITH_ALL_COMMANDS:
            self._read_in_log(state, texts)
        for _ in range(self._count()):
            deferred_id, ending, stamp_ms = self._take(_ENDED)
            of = texts[self._count()] if version > _WITHOUT_TOPICS_OF_ENDS else ""
            state.deferred.remember(Ended(deferred_id, Ending(ending), stamp_ms, of))
        for _ in range(self._count() if version > _WITHOUT_SYSTEM_OFFSETS else 0):
            topic, queue_id, offset = self._take(_SYSTEM_OFFSET)
            state.adopt([SystemOffset(texts[topic], queue_id, offset)])
        state.ids = DuplicateFilter(self._bytes(self._count() * _ID_SIZE))
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes too many")
        return mark

    def _read_in_log(self, state: DeliveryState, texts: list[str]) -> None:
        for _ in range(self._count()):
            deferred_id, due_ms, topic, pos, size, element = self._take(_IN_LOG)
            place = LogPosition(pos, size)
            state.deferred.put(
                deferred_id,
                DeferredMessage(b"", DeferredKind.DELAYED, texts[topic], due_ms, b"", 0, place, element),
            )
            if state.deferred.is_full:
                state.write_index()

    def _texts(self) -> list[str]:
        return [self._bytes(self._take(_TEXT)[0]).decode() for _ in range(self._count())]

    def _segment(self) -> list[tuple[int, PoppedMessage]]:
        inside = _Reader(self._bytes(self._count()))
        texts = inside._texts()
        found = [inside._pending(texts) for _ in range(inside._count())]
        if inside._at != len(inside._data):
            raise ValueError("a segment with bytes too many")
        return found

    def _pending(self, texts: list[str]) -> tuple[int, PoppedMessage]:
        offset, pop, invisible_until_ms, attempts, owner, attempt, renews, given_ms = self._take(PENDING)
        return offset, PoppedMessage(
            pop, invisible_until_ms, attempts, texts[owner], texts[attempt], bool(renews), given_ms
        )

    def _count(self) -> int:
        return int(self._take(_COUNT)[0])

    def _take(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def _bytes(self, size: int) -> bytes:
        found = bytes(self._data[self._at : self._at + size])
        if len(found) != size:
            raise ValueError(f"{size} bytes at {self._at} of {len(self._data)}")
        self._at += size
        return found
