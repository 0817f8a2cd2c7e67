"""Encoding of the whole delivery state, in the state image and in checkpoints.

    0    4    "DDSI"
    4    1    version, 7, and 8 of a checkpoint; 1 to 6 are read
    5    4    CRC32 of the following bytes
    9    8    applied index
         4    number of texts, each 2+n
         4    number of queues, sorted, each group 4, topic 4 (indexes of texts), queue id 4, cursor 8,
              number of segments 4, each size 4, bytes (`queue_state.QueueDelivery.encoded`)
         4    number of deferred messages, each number 8, due 8, checks 4, size 4, command
         4    number of delayed messages in the log, in log order, each number 8, due 8, topic 4
              (index of a text), entry position 8, size of the entry's body 4, index in its command 2
         4    number of ends, each number 8, ending 1, stamp 8, topic 4 (index of a text)
         4    number of system queues, sorted, each topic 4 (index of a text),
              queue id 4, offset 8
         8    total of cluster time steps, ms; stamps of ids are cluster time without them
         4    number of ids, each digest of topic and id 16, content digest 16, born 8, queue id 4,
              queue offset 8, stamp 8

(big endian) Equal states have equal bytes. Version 8 is a checkpoint for use with an index. In place of the
delayed messages in the log, it contains their number 8, the sum of their CRC32 8, and the number of the
latest change of the index 8. Before version 7 (0.1.0), ids had neither content nor born timestamp, the steps
were missing, and a checkpoint had version 6. Before version 5 there were no system queues. Before version 4
all deferred messages were stored with their commands. Before version 3 an end had no topic. In version 1 a
queue had no segments, but the number of its pending messages 4 and these messages, encoded as in a segment
with indexes into the texts of the whole image.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from zlib_ng.zlib_ng import crc32

from broker_adapter.delivery_state.commands import Defer, DeferredKind, Ending, QueueKey, SystemOffset
from broker_adapter.delivery_state.deferred_messages import (
    DeferredMessage,
    DeferredMessages,
    EndedMessage,
    IndexMark,
    LogPosition,
)
from broker_adapter.delivery_state.duplicate_filter import FIRST_ID_SIZE, ID_SIZE, DuplicateFilter
from broker_adapter.delivery_state.queue_state import PENDING, PoppedMessage, QueueDelivery
from broker_adapter.delivery_state.records import decode
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import Status, StoredDataDamaged

MAGIC = b"DDSI"
VERSION = 7
_WITH_INDEX = 8
_FIRST_WITH_INDEX = 6
_WITHOUT_CONTENT_OF_IDS = 6
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
_STEPS = struct.Struct(">q")


def save(state: DeliveryState) -> bytes:
    """Encode the full state. Call from the applying thread."""
    return _save(state, None)


def checkpoint(state: DeliveryState) -> tuple[bytes, IndexMark | None]:
    """Encode the state for this node, without the rows of the index. The mark is None if there is no index.

    Call from the applying thread. Raises OSError.
    """
    mark = state.mark_index() if state.has_index else None
    return _save(state, mark), mark


def _save(state: DeliveryState, mark: IndexMark | None) -> bytes:
    texts: dict[str, int] = {}
    queues = [_queue(state.queues[key], texts) for key in sorted(state.queues)]
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
        _STEPS.pack(state.ids.steps_ms),
        _COUNT.pack(len(ids) // ID_SIZE),
        ids,
    ]
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    version = VERSION if mark is None else _WITH_INDEX
    return b"".join((_HEADER.pack(MAGIC, version, crc), *pieces))


def restore(state: DeliveryState, data: bytes) -> IndexMark | None:
    """Load a checkpoint and revert the index to it. Return its mark, or None if the checkpoint was written
    without an index.

    Call from the applying thread. Raises StoredDataDamaged (METADATA_DAMAGED) or OSError; the caller must
    then call `load`.
    """
    header = data[: _HEADER.size]
    if len(header) < _HEADER.size or _HEADER.unpack(header)[1] not in (_WITH_INDEX, _FIRST_WITH_INDEX):
        load(state, data)
        return None
    loaded = state.empty_copy()
    mark = _read(loaded, data, is_checkpoint=True)
    state.adopt_contents(loaded)
    return mark


def load(state: DeliveryState, image: bytes) -> None:
    """Replace the state with an image made by `save`. An empty image means the empty state.

    Call from the applying thread. Raises StoredDataDamaged (METADATA_DAMAGED) if the image is invalid; the
    state is then empty.
    """
    state.clear()
    if not image:
        return
    loaded = state.empty_copy()
    try:
        _read(loaded, image, is_checkpoint=False)
    except StoredDataDamaged:
        state.clear()
        raise
    state.adopt_contents(loaded)


def _read(state: DeliveryState, data: bytes, *, is_checkpoint: bool) -> IndexMark | None:
    """Parse an image. Raises StoredDataDamaged (METADATA_DAMAGED) if it is invalid."""
    try:
        magic, version, crc = _HEADER.unpack_from(data)
        payload = memoryview(data)[_HEADER.size :]
        is_known = _WITHOUT_SEGMENTS <= version <= _WITH_INDEX
        is_with_index = version in (_WITH_INDEX, _FIRST_WITH_INDEX)
        if magic != MAGIC or not is_known or is_with_index is not is_checkpoint or crc32(payload) != crc:
            raise ValueError(
                f"invalid header (magic {magic!r}, version {version}), or the checksum does not match"
            )
        return _ImageReader(payload).read(state, version)
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
    """Encode the delayed messages in pages, because there may be many."""
    place_of = {name: texts.setdefault(name, len(texts)) for name in messages.topics_in_log()}
    pack = _IN_LOG.pack
    for page in messages.pages():
        yield b"".join(
            pack(row.number, row.due_ms, place_of[row.topic], row.pos, row.size, row.element) for row in page
        )


def _ended(ended: EndedMessage, texts: dict[str, int]) -> bytes:
    place = texts.setdefault(ended.topic, len(texts))
    return _ENDED.pack(ended.deferred_id, ended.ending, ended.stamp_ms) + _COUNT.pack(place)


class _ImageReader:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, state: DeliveryState, version: int) -> IndexMark | None:
        (state.applied_index,) = self._unpack(_APPLIED)
        texts = self._texts()
        for _ in range(self._count()):
            group, topic, queue_id, cursor, count = self._unpack(_QUEUE)
            queue = QueueDelivery(QueueKey(texts[group], texts[topic], queue_id), cursor)
            if version > _WITHOUT_SEGMENTS:
                pending = [one for _ in range(count) for one in self._segment()]
            else:
                pending = [self._pending(texts) for _ in range(count)]
            state.restore(queue, pending)
        for _ in range(self._count()):
            deferred_id, due_ms, checks, size = self._unpack(_DEFERRED)
            command = decode(self._bytes(size))
            if command is None or len(command.elements) != 1 or not isinstance(command.elements[0], Defer):
                raise ValueError(f"deferred message {deferred_id} is missing")
            message = DeferredMessage.of(command.elements[0])
            state.deferred.put(deferred_id, message._replace(due_ms=due_ms, checks=checks))
        mark = None
        if version in (_WITH_INDEX, _FIRST_WITH_INDEX):
            mark = IndexMark(*self._unpack(_MARK))
            state.deferred.restore(mark)
        elif version > _WITH_ALL_COMMANDS:
            self._read_in_log(state, texts)
        for _ in range(self._count()):
            deferred_id, ending, stamp_ms = self._unpack(_ENDED)
            of = texts[self._count()] if version > _WITHOUT_TOPICS_OF_ENDS else ""
            state.deferred.remember(EndedMessage(deferred_id, Ending(ending), stamp_ms, of))
        for _ in range(self._count() if version > _WITHOUT_SYSTEM_OFFSETS else 0):
            topic, queue_id, offset = self._unpack(_SYSTEM_OFFSET)
            state.restore_system_offset(SystemOffset(texts[topic], queue_id, offset))
        if version > _WITHOUT_CONTENT_OF_IDS:
            (steps_ms,) = self._unpack(_STEPS)
            state.ids = DuplicateFilter(self._bytes(self._count() * ID_SIZE), steps_ms)
        else:
            state.ids = DuplicateFilter.of_first_version(self._bytes(self._count() * FIRST_ID_SIZE))
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} unexpected bytes after the end of the image")
        return mark

    def _read_in_log(self, state: DeliveryState, texts: list[str]) -> None:
        for _ in range(self._count()):
            deferred_id, due_ms, topic, pos, size, element = self._unpack(_IN_LOG)
            place = LogPosition(pos, size)
            state.deferred.put(
                deferred_id,
                DeferredMessage(b"", DeferredKind.DELAYED, texts[topic], due_ms, b"", 0, place, element),
            )
            if state.deferred.is_full:
                state.write_index()

    def _texts(self) -> list[str]:
        return [self._bytes(self._unpack(_TEXT)[0]).decode() for _ in range(self._count())]

    def _segment(self) -> list[tuple[int, PoppedMessage]]:
        inside = _ImageReader(self._bytes(self._count()))
        texts = inside._texts()
        found = [inside._pending(texts) for _ in range(inside._count())]
        if inside._at != len(inside._data):
            raise ValueError("unexpected bytes after the end of a segment")
        return found

    def _pending(self, texts: list[str]) -> tuple[int, PoppedMessage]:
        offset, pop, invisible_until_ms, attempts, owner, attempt, renews, given_ms = self._unpack(PENDING)
        return offset, PoppedMessage(
            pop, invisible_until_ms, attempts, texts[owner], texts[attempt], bool(renews), given_ms
        )

    def _count(self) -> int:
        return int(self._unpack(_COUNT)[0])

    def _unpack(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def _bytes(self, size: int) -> bytes:
        found = bytes(self._data[self._at : self._at + size])
        if len(found) != size:
            raise ValueError(
                f"expected {size} bytes at position {self._at}, but the image ends at {len(self._data)}"
            )
        self._at += size
        return found
