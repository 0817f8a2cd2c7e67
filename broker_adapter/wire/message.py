"""Message records, with the bytes of RocketMQ's CommitLog. One record is the body of one log entry.

    0    4       total size
    4    4       magic: 0xDAA320A7 (V1) or 0xDAA320AB (V2)
    8    4       body crc: CRC32 of the body, its highest bit cleared
    12   4       queue id
    16   4       flag: the producer's own
    20   8       queue offset
    28   8       physical offset: where this record is in the CommitLog, entry.pos + 48
    36   4       sys_flag (`broker_adapter.wire.sys_flag`)
    40   8       born timestamp, milliseconds
    48   8 | 20  born host: address 4, or 16 if sys_flag says so, port 4
    56*  8       store timestamp, milliseconds
    64*  8 | 20  store host
    72*  4       reconsume times
    76*  8       prepared transaction offset
    84*  4 + n   body
         1 + n   topic; V2: 2 + n
         2 + n   properties (`broker_adapter.wire.properties`)

(big endian; * and 12 more for each IPv6 host before; RocketMQ's MessageExtEncoder and MessageDecoder)

The log assigns queue offset and physical offset after a record is encoded. `patch_offsets` then writes them
into the bytes.

`encode` restores every record that `decode` accepts, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import IllegalMessage, Status, StoredDataDamaged
from broker_adapter.wire.host import NO_HOST, Host
from broker_adapter.wire.message_id import format_offset_id
from broker_adapter.wire.properties import encode_properties
from broker_adapter.wire.sys_flag import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6
from broker_adapter.wire.topic_names import MAX_DERIVED_TOPIC_LENGTH, MAX_TOPIC_LENGTH

#: RocketMQ's maxMessageSize, which limits only the body.
MAX_BODY_BYTES = 4 << 20
#: Size of a V1 record with IPv4 hosts and no body, properties or topic name.
MIN_RECORD_SIZE = 91

BLANK_MAGIC = 0xCBD43194
_QUEUE_OFFSET_AT = 20
_SYS_FLAG_AT = 36
_CRC_MASK = 0x7FFFFFFF

Buffer = bytes | bytearray | memoryview


class Version(IntEnum):
    """The magic code.

    V2 stores the topic length in two bytes, which is required if the topic is longer than 127 bytes.
    """

    V1 = 0xDAA320A7
    V2 = 0xDAA320AB


_MAGICS = frozenset(int(version) for version in Version)


class MessageRecord(NamedTuple):
    """A message as stored in its record.

    `properties` is the text from the record (see `split_properties`). `encode` ignores the two bits of
    `sys_flag` that indicate the host sizes, and derives them from the hosts. `version`: if None, `encode`
    chooses the version by the length of the topic.
    """

    topic: str
    body: bytes
    properties: str = ""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0  # ms since 1970, the producer's clock
    born_host: Host = NO_HOST
    store_timestamp: int = 0  # ms since 1970, cluster time
    store_host: Host = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    version: Version | None = None

    @property
    def offset_id(self) -> str:
        """Return the offset id of this record, which consists of store host and physical offset."""
        return format_offset_id(self.store_host, self.physical_offset)


def _fixed_part(born: int, store: int) -> struct.Struct:
    return struct.Struct(f">IIIiiqqiq{born}siq{store}siiqi")


#: The fields up to and including the body size, by the two host bits of sys_flag.
_FIXED = {
    0: _fixed_part(4, 4),
    BORN_HOST_V6: _fixed_part(16, 4),
    STORE_HOST_V6: _fixed_part(4, 16),
    HOST_BITS: _fixed_part(16, 16),
}
_SIZE_AND_MAGIC = struct.Struct(">II")
_INT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_OFFSETS = struct.Struct(">qq")

#: Signed fields and their sizes in bits, for error texts.
_BITS_OF_FIELD = {
    "queue_id": 32,
    "flag": 32,
    "queue_offset": 64,
    "physical_offset": 64,
    "sys_flag": 32,
    "born_timestamp": 64,
    "store_timestamp": 64,
    "reconsume_times": 32,
    "prepared_transaction_offset": 64,
}
_NEVER_NEGATIVE = ("queue_id", "queue_offset", "physical_offset")


def record_size(
    body_size: int, topic_size: int, properties_size: int, *, version: Version = Version.V1, v6_hosts: int = 0
) -> int:
    """Return the size of a record, given the sizes of its parts and the number of IPv6 hosts (0 to 2)."""
    topic_field = 1 if version is Version.V1 else 2
    return 88 + 12 * v6_hosts + body_size + topic_field + topic_size + 2 + properties_size


def max_record_size(max_body_bytes: int = MAX_BODY_BYTES) -> int:
    """Return the maximum size of a record whose body has this size. Batches and buffers use it as a limit."""
    return record_size(max_body_bytes, MAX_DERIVED_TOPIC_LENGTH, 0x7FFF, version=Version.V2, v6_hosts=2)


def encode(message: MessageRecord, *, max_body_bytes: int = MAX_BODY_BYTES) -> bytearray:
    """Encode a message as a record, ready for `patch_offsets`.

    Raises IllegalMessage with TOPIC_NAME_INVALID, TOPIC_NAME_TOO_LONG, PROPERTIES_INVALID,
    PROPERTIES_TOO_LONG, BODY_TOO_LARGE or FIELD_OUT_OF_RANGE if the message does not fit into the layout. The
    layout accepts any topic of up to 127 bytes, or 255 in V2; `check_topic_name` validates names.
    """
    topic, version = _encode_topic(message)
    properties = encode_properties(message.properties)
    body = message.body
    if len(body) > max_body_bytes:
        raise IllegalMessage(
            Status.BODY_TOO_LARGE, f"the body is {len(body)} bytes long; the limit is {max_body_bytes}"
        )
    born, store = message.born_host, message.store_host
    for name in _NEVER_NEGATIVE:
        if getattr(message, name) < 0:
            raise _out_of_range(f"{name} {getattr(message, name)} is negative")
    if (problem := born.problem() or store.problem()) is not None:
        raise _out_of_range(problem)
    host_bits = (BORN_HOST_V6 if born.is_v6 else 0) | (STORE_HOST_V6 if store.is_v6 else 0)
    fixed = _FIXED[host_bits]
    topic_field = bytes((len(topic),)) if version is Version.V1 else _LENGTH.pack(len(topic))
    tail = b"".join((body, topic_field, topic, _LENGTH.pack(len(properties)), properties))
    try:
        record = bytearray(
            fixed.pack(
                fixed.size + len(tail),
                version,
                crc32(body) & _CRC_MASK,
                message.queue_id,
                message.flag,
                message.queue_offset,
                message.physical_offset,
                message.sys_flag & ~HOST_BITS | host_bits,
                message.born_timestamp,
                *born,
                message.store_timestamp,
                *store,
                message.reconsume_times,
                message.prepared_transaction_offset,
                len(body),
            )
        )
    except struct.error:
        raise _out_of_range(_field_that_does_not_fit(message)) from None
    record += tail
    return record


def decode(
    record: Buffer, *, max_body_bytes: int = MAX_BODY_BYTES, verify_body: bool = True
) -> MessageRecord:
    """Decode exactly one record. `verify_body=False` skips the check of the body crc.

    Raises StoredDataDamaged with RECORD_TRUNCATED (fewer bytes than its size field specifies), RECORD_MAGIC,
    RECORD_LENGTHS (its sizes contradict each other or exceed the limits), RECORD_BODY_CRC, RECORD_TEXT (topic
    or properties are not UTF-8) or RECORD_FIELD (a number that no broker writes).
    """
    size = record_size_at(record, 0, max_body_bytes=max_body_bytes)
    if size != len(record):
        raise _damaged(Status.RECORD_LENGTHS, f"the record is {size} bytes long, the buffer {len(record)}")
    return _decode_at(memoryview(record), 0, size, max_body_bytes, verify_body)


def decode_all(
    records: Buffer, *, max_body_bytes: int = MAX_BODY_BYTES, verify_body: bool = True
) -> list[MessageRecord]:
    """Decode consecutive records. Raises the same errors as `decode`."""
    return list(decode_each(records, max_body_bytes=max_body_bytes, verify_body=verify_body))


def decode_each(
    records: Buffer, *, max_body_bytes: int = MAX_BODY_BYTES, verify_body: bool = True
) -> Iterator[MessageRecord]:
    """Like `decode_all`, but yields one message at a time."""
    view = memoryview(records)
    at = 0
    while at < len(view):
        end = at + record_size_at(view, at, max_body_bytes=max_body_bytes)
        yield _decode_at(view, at, end, max_body_bytes, verify_body)
        at = end


def record_size_at(data: Buffer, at: int, *, max_body_bytes: int = MAX_BODY_BYTES) -> int:
    """Return the size of the complete record at `at`. Does not check the rest of the record.

    Raises StoredDataDamaged with RECORD_TRUNCATED, RECORD_MAGIC or RECORD_LENGTHS.
    """
    left = len(data) - at
    if at < 0 or left < _SIZE_AND_MAGIC.size:
        raise _damaged(Status.RECORD_TRUNCATED, f"the remaining {left} bytes are too short for a record")
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    if magic not in _MAGICS:
        kind = "the magic of a blank" if magic == BLANK_MAGIC else "not the magic of a message"
        raise _damaged(Status.RECORD_MAGIC, f"magic {magic:#010x} is {kind}")
    if not MIN_RECORD_SIZE < size <= max_record_size(max_body_bytes):
        raise _damaged(Status.RECORD_LENGTHS, f"the record size {size} is invalid")
    if size > left:
        raise _damaged(Status.RECORD_TRUNCATED, f"the record is truncated: {left} of {size} bytes")
    return int(size)


def patch_offsets(
    buffer: bytearray | memoryview, queue_offset: int, physical_offset: int, *, at: int = 0
) -> None:
    """Write the offsets into the record at `at`.

    If there is no record or an offset is out of range, raises ValueError and changes nothing. Both are bugs.
    """
    if not (0 <= queue_offset < 1 << 63 and 0 <= physical_offset < 1 << 63):
        raise ValueError(f"queue offset {queue_offset} or physical offset {physical_offset} is out of range")
    if at < 0 or len(buffer) - at < MIN_RECORD_SIZE:
        raise ValueError(f"no record starts at offset {at} of the {len(buffer)}-byte buffer")
    magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)[1]
    if magic not in _MAGICS:
        raise ValueError(f"no record starts at offset {at}: the magic is {magic:#010x}")
    _OFFSETS.pack_into(buffer, at + _QUEUE_OFFSET_AT, queue_offset, physical_offset)


def _encode_topic(message: MessageRecord) -> tuple[bytes, Version]:
    try:
        topic = message.topic.encode()
    except UnicodeEncodeError as error:
        raise IllegalMessage(
            Status.TOPIC_NAME_INVALID, f"the topic name is not valid Unicode at character {error.start}"
        ) from None
    if not topic:
        raise IllegalMessage(Status.TOPIC_NAME_INVALID, "the topic name is empty")
    version = message.version
    if version is None:
        version = Version.V1 if len(topic) <= MAX_TOPIC_LENGTH else Version.V2
    limit = MAX_TOPIC_LENGTH if version is Version.V1 else MAX_DERIVED_TOPIC_LENGTH
    if len(topic) > limit:
        raise IllegalMessage(
            Status.TOPIC_NAME_TOO_LONG, f"the topic name is {len(topic)} bytes long; the limit is {limit}"
        )
    return topic, version


def _decode_at(view: memoryview, at: int, end: int, max_body_bytes: int, verify_body: bool) -> MessageRecord:
    (sys_flag,) = _INT.unpack_from(view, at + _SYS_FLAG_AT)
    fixed = _FIXED[sys_flag & HOST_BITS]
    body_at = at + fixed.size
    if body_at > end:
        raise _damaged(Status.RECORD_LENGTHS, f"{end - at} bytes are too short for the hosts")
    (
        _size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        _sys_flag,
        born_timestamp,
        born_address,
        born_port,
        store_timestamp,
        store_address,
        store_port,
        reconsume_times,
        prepared_transaction_offset,
        body_size,
    ) = fixed.unpack_from(view, at)
    version = Version(magic)
    topic_at, topic_end, properties_at = _divide(view, body_at, body_size, end, version, max_body_bytes)
    body = bytes(view[body_at : body_at + body_size])
    if verify_body and crc32(body) & _CRC_MASK != body_crc:
        raise _damaged(Status.RECORD_BODY_CRC, f"the body does not match its CRC {body_crc:#010x}")
    born_host, store_host = Host(born_address, born_port), Host(store_address, store_port)
    if min(queue_id, queue_offset, physical_offset) < 0:
        offsets = f"queue offset {queue_offset}, physical offset {physical_offset}"
        raise _damaged(Status.RECORD_FIELD, f"queue id {queue_id} and {offsets} must not be negative")
    if (problem := born_host.problem() or store_host.problem()) is not None:
        raise _damaged(Status.RECORD_FIELD, problem)
    try:
        topic = str(view[topic_at:topic_end], "utf-8")
        properties = str(view[properties_at:end], "utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(Status.RECORD_TEXT, f"invalid topic or properties: {error}") from None
    return MessageRecord(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        version=version,
    )


def _divide(
    view: memoryview, body_at: int, body_size: int, end: int, version: Version, max_body_bytes: int
) -> tuple[int, int, int]:
    """Return the positions (topic, end of topic, properties). The properties extend to `end`."""
    size_of_topic_size = 1 if version is Version.V1 else 2
    body_end = body_at + body_size
    if not 0 <= body_size <= max_body_bytes or body_end + size_of_topic_size > end:
        raise _damaged(Status.RECORD_LENGTHS, f"the body of {body_size} bytes does not fit in the record")
    topic_at = body_end + size_of_topic_size
    topic_size = int.from_bytes(view[body_end:topic_at], "big")
    limit = MAX_TOPIC_LENGTH if version is Version.V1 else MAX_DERIVED_TOPIC_LENGTH
    topic_end = topic_at + topic_size
    if not 1 <= topic_size <= limit or topic_end + _LENGTH.size > end:
        raise _damaged(Status.RECORD_LENGTHS, f"the topic of {topic_size} bytes does not fit in the record")
    (properties_size,) = _LENGTH.unpack_from(view, topic_end)
    properties_at = topic_end + _LENGTH.size
    if properties_at + properties_size != end:
        raise _damaged(
            Status.RECORD_LENGTHS,
            f"the properties of {properties_size} bytes do not fit in the remaining {end - properties_at}",
        )
    return topic_at, topic_end, properties_at


def _field_that_does_not_fit(message: MessageRecord) -> str:
    for name, bits in _BITS_OF_FIELD.items():
        value = getattr(message, name)
        if not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
            return f"{name} {value!r} does not fit into {bits} bits"
    return "a field does not fit into the record"


def _out_of_range(problem: str) -> IllegalMessage:
    return IllegalMessage(Status.FIELD_OUT_OF_RANGE, problem)


def _damaged(status: Status, problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(status, problem)
