"""Decoders of the broker: records and commands, files derived from them, ids and handles, answers."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from zlib_ng.zlib_ng import crc32

from broker_adapter.delivery_state import handles
from broker_adapter.delivery_state import image as delivery_image
from broker_adapter.delivery_state import records as delivery_records
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.endpoints.forwarding import frames
from broker_adapter.endpoints.rejected import Rejected
from broker_adapter.endpoints.v5.messages.methods import METHODS
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import IllegalMessage, Status, StoredDataDamaged
from broker_adapter.metadata import image as metadata_image
from broker_adapter.metadata import records as metadata_records
from broker_adapter.metadata.state import MetadataState
from broker_adapter.namesrv.kv_config import KvConfig
from broker_adapter.server.replicated_state import ReplicatedState
from broker_adapter.store import checkpoint
from broker_adapter.v1 import forward_pb2
from broker_adapter.wire import consume_queue_unit, host, index_layout, message, message_id, properties
from broker_adapter.wire.index_layout import IndexHeader, IndexShape
from dledger import Applied, ImageRefused
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.store.helpers import ROOT, V6, Log
from tests.broker_adapter.store.poison import Replica, delivery_elements, metadata_commands
from tests.fuzz.messages import Known
from tests.fuzz.target import Target
from tests.fuzz.targets_log import from_wire, made

_SHAPE = IndexShape(5, 12)


# -- records


def _record(rng: Random) -> bytes:
    version = rng.choice((None, message.Version.V2))
    return (
        Log()
        .message(tag="A", keys="k k2", host=rng.choice((None, V6)), body=rng.randbytes(9), version=version)
        .body
    )


def with_record_sums(data: bytes) -> bytes:
    """Of one record: its size, and the sum of its body."""
    if len(data) < 92:
        return data
    flag = int.from_bytes(data[36:40])
    at = 84 + 12 * bool(flag & 16) + 12 * bool(flag & 32)
    size = int.from_bytes(data[at : at + 4], signed=True)
    crc = crc32(data[at + 4 : at + 4 + max(0, size)]) & 0x7FFFFFFF
    return len(data).to_bytes(4) + data[4:8] + crc.to_bytes(4) + data[12:]


def _decode_record(data: bytes) -> None:
    message.record_size_at(data, 0)
    found = message.decode(data)
    properties.split_properties(found.properties)


# -- commands and images


def _states(rng: Random) -> tuple[MetadataState, DeliveryState]:
    kept, given = MetadataState(), DeliveryState()
    for index, command in enumerate(metadata_commands()[:6]):
        kept.apply(index, metadata_records.encode(command))
    for index in range(20):
        given.apply(index, 10**12 + index, delivery_records.encode(delivery_elements(rng, given)))
    return kept, given


def _replicated(rng: Random) -> bytes:
    return ReplicatedState(*_states(rng)).save()


def with_image_sum(data: bytes) -> bytes:
    """Of the image of one state: magic, version, sum, payload."""
    return data[:5] + crc32(data[9:]).to_bytes(4) + data[9:]


def with_both_sums(data: bytes) -> bytes:
    size = int.from_bytes(data[5:13]) if len(data) > 13 else 0
    if size > len(data):
        return data
    return data[:13] + with_image_sum(data[13 : 13 + size]) + with_image_sum(data[13 + size :])


def _apply_metadata(data: bytes) -> None:
    record = metadata_records.decode(data)
    state = MetadataState()
    for index, command in enumerate(metadata_commands()[:5]):
        state.apply(index, metadata_records.encode(command))
    state.apply(9, data)
    assert record is not None and state.save()


def _load_metadata(data: bytes) -> None:
    state = MetadataState()
    state.load(data)
    again = MetadataState()
    again.load(state.save())


def _load_delivery(data: bytes) -> None:
    """What is taken can be written again, and taken again: an image is made of the state it gave."""
    state = DeliveryState()
    delivery_image.load(state, data)
    delivery_image.load(DeliveryState(), delivery_image.save(state))


def _load_replicated(data: bytes) -> None:
    ReplicatedState(MetadataState(), DeliveryState()).load(data)


# -- derived files

_POSITION = checkpoint.QueuePosition("T", 0, 5, 1)


def _image(rng: Random) -> bytes:
    return checkpoint.encode_image(
        checkpoint.DerivedImage([_POSITION] * rng.randrange(3), _replicated(rng), [3])
    )


def _checkpoint(rng: Random) -> bytes:
    header = IndexHeader(1, 2, 3, 4, 1, 2)
    queues = [checkpoint.QueueState("T", 0, 0, 5, 1, (7, 8))] * rng.randrange(3)
    files = [checkpoint.IndexState("00001", header, 7, rng.choice((None, 8)))] * rng.randrange(2)
    made = checkpoint.DerivedCheckpoint(Applied(9, 1, 900), 4, IndexShape(5, 12), queues, files, b"", [1], [])
    return checkpoint.encode_checkpoint(made)


def with_frame_sum(data: bytes) -> bytes:
    """Of a checkpoint or an image: magic, version, two sizes, their sum, a table in JSON, the metadata."""
    head_size = checkpoint._HEAD.size
    begin = head_size + 4
    if len(data) < begin:
        return data
    magic, version, text_size, _ = checkpoint._HEAD.unpack_from(data)
    rest = len(data) - begin
    end = data.rfind(b"}", begin) + 1 - begin if text_size > rest else text_size
    head = checkpoint._HEAD.pack(magic, version, max(0, end), rest - max(0, end))
    return head + crc32(data[begin:], crc32(head)).to_bytes(4) + data[begin:]


def _recover(data: bytes) -> None:
    """A start with such a checkpoint never fails: whatever it says, the log has it all."""
    disk = SimDisk()
    disk.mkdir(ROOT)
    disk.set_content(ROOT / checkpoint.FILE_NAME, data)
    Replica(disk).start()


def _load_image(data: bytes) -> None:
    Replica().dispatcher.load([data])


def _index_header(rng: Random) -> bytes:
    return index_layout.encode_header(IndexHeader(1, 2, 3, 4, 1, rng.randrange(1, 12)))


def _index_items(rng: Random) -> bytes:
    return index_layout.encode_items([(rng.randrange(9), 100, 5, 1)] * 3)


def _decode_index(data: bytes) -> None:
    index_layout.decode_items(data)
    for at in (0, 20, len(data) - 20):
        index_layout.decode_item(data, at)
        index_layout.link(index_layout.decode_slot(data, at), 5)


def _units(rng: Random) -> bytes:
    unit = consume_queue_unit.ConsumeQueueUnit(100, 200, rng.randrange(9))
    return consume_queue_unit.encode_units([unit] * rng.randrange(1, 9))


def _decode_units(data: bytes) -> None:
    for unit in consume_queue_unit.decode_units(data):
        unit.is_message()
    consume_queue_unit.decode_unit(data, len(data) - 20)


def _kv_config(rng: Random) -> bytes:
    disk = SimDisk()
    disk.mkdir(ROOT)
    config = KvConfig(ROOT / "kv", disk)
    for number in range(rng.randrange(1, 4)):
        config.put("n", f"k{number}", "v\u00e4")
    return disk.content(ROOT / "kv")


def _load_kv(data: bytes) -> None:
    disk = SimDisk()
    disk.mkdir(ROOT)
    disk.set_content(ROOT / "kv", data)
    config = KvConfig(ROOT / "kv", disk)
    config.put("n", "k", "v")
    KvConfig(ROOT / "kv", disk)


# -- texts by which clients name things


def text(decode: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """As protobuf gives texts: always Unicode."""
    return lambda data: decode(data.decode("utf-8", "replace"))


def with_handle_sum(data: bytes) -> bytes:
    with suppress(NotBase64, ValueError):
        raw = urlsafe_b64decode(data + b"=" * (-len(data) % 4))
        return urlsafe_b64encode(raw[:-4] + crc32(raw[:-4]).to_bytes(4)).rstrip(b"=")
    return data


def _offset_id(rng: Random) -> bytes:
    where = rng.choice((host.Host(bytes(4), 10911), V6))
    return message_id.format_offset_id(where, rng.randrange(1 << 40)).encode()


# -- what servers and clients send

KNOWN: Known = {
    "topic": ("T", "U"),
    "name": ("T", "g"),
    "role": ("SYNC_MASTER", "SLAVE", 0, 1),
    "store_host": (bytes(4) + (10911).to_bytes(4), bytes(16) + bytes(4), b""),
    "physical_offsets": (100,),
    "offset_ids": ("0" * 32,),
    "code": (0, 700, 706),
    "pull_code": (0, 1, 2, 3),
    "records": (b"",),
    "properties": ("a\1b\2", "TAGS\1x\2"),
    "bodies": (b"a",),
    "timeout_ms": (1, 1000),
}


def _conversion(
    name: str, message_type: type[Any], function: Callable[..., Any], *refusals: type[Exception]
) -> Target:
    return Target(name, made(message_type, KNOWN), from_wire(message_type, function), (function,), refusals)


def _method(rng: Random) -> bytes:
    name = rng.choice(sorted(METHODS))
    return name.encode() + b"\n" + made(METHODS[name].request, KNOWN)(rng)


def _parse_method(data: bytes) -> None:
    name, _, given = data.partition(b"\n")
    method = name.decode("latin-1")
    if method in METHODS:
        request = Request(method, given)
        with suppress(Rejected):
            request.parsed()
        request.refused(IllegalMessage(Status.FIELD_OUT_OF_RANGE, "no"))


def _forwarded(message: forward_pb2.FromNode) -> None:
    frames.clients_from_pb(message.clients)
    for call in message.calls:
        frames.context_from_pb(call.context)


def _answered(message: forward_pb2.FromMaster) -> None:
    for answer in message.answers:
        frames.error_from_pb(answer.code, answer.message)


_DAMAGED = (StoredDataDamaged,)
TARGETS = (
    Target(
        "record",
        _record,
        _decode_record,
        (message.decode, message.record_size_at, properties.split_properties),
        _DAMAGED,
        with_record_sums,
    ),
    Target(
        "records",
        lambda rng: _record(rng) + _record(rng),
        message.decode_all,
        (message.decode_all, message.decode_each),
        _DAMAGED,
    ),
    Target(
        "metadata-command",
        lambda rng: metadata_records.encode(rng.choice(metadata_commands())),
        _apply_metadata,
        (
            metadata_records.decode,
            metadata_records.topic_from_json,
            metadata_records.group_from_json,
            metadata_records.members_from_json,
        ),
        _DAMAGED,
    ),
    Target(
        "delivery-command",
        lambda rng: delivery_records.encode(delivery_elements(rng, DeliveryState())),
        delivery_records.decode,
        (delivery_records.decode,),
        _DAMAGED,
    ),
    Target(
        "metadata-image",
        lambda rng: _states(rng)[0].save(),
        _load_metadata,
        (MetadataState.load, metadata_image.decode_image),
        _DAMAGED,
        with_image_sum,
    ),
    Target(
        "delivery-image",
        lambda rng: delivery_image.save(_states(rng)[1]),
        _load_delivery,
        (delivery_image.load,),
        _DAMAGED,
        with_image_sum,
    ),
    Target("state-image", _replicated, _load_replicated, (ReplicatedState.load,), _DAMAGED, with_both_sums),
    Target(
        "broker-image",
        _image,
        _load_image,
        (checkpoint.decode_image, type(Replica().dispatcher).load),
        (ImageRefused,),
        with_frame_sum,
    ),
    Target(
        "broker-checkpoint",
        _checkpoint,
        checkpoint.decode_checkpoint,
        (checkpoint.decode_checkpoint,),
        _DAMAGED,
        with_frame_sum,
        text=True,
    ),
    Target(
        "broker-start", _checkpoint, _recover, (checkpoint.read_checkpoint,), (), with_frame_sum, text=True
    ),
    Target(
        "consume-queue-units",
        _units,
        _decode_units,
        (consume_queue_unit.decode_units, consume_queue_unit.decode_unit),
        _DAMAGED,
    ),
    Target(
        "index-header",
        _index_header,
        lambda data: index_layout.decode_header(data, _SHAPE),
        (index_layout.decode_header,),
        _DAMAGED,
    ),
    Target(
        "index-items",
        _index_items,
        _decode_index,
        (index_layout.decode_items, index_layout.decode_item, index_layout.decode_slot),
        _DAMAGED,
    ),
    Target("namesrv-kv", _kv_config, _load_kv, (), _DAMAGED, text=True),
    Target(
        "properties-of-message",
        lambda rng: b"a\1b\2TAGS\1x\2",
        text(properties.split_properties),
        (properties.split_properties,),
        text=True,
    ),
    Target(
        "offset-id",
        _offset_id,
        text(message_id.parse_offset_id),
        (message_id.parse_offset_id,),
        (IllegalMessage,),
        text=True,
    ),
    Target(
        "receipt-handle",
        lambda rng: handles.receipt_handle("T", 0, 5, 7).encode(),
        text(lambda found: handles.parse_receipt("T", found)),
        (handles.parse_receipt,),
        repair=with_handle_sum,
        text=True,
    ),
    Target(
        "half-handle",
        lambda rng: handles.half_handle("T", 5, 7).encode(),
        text(lambda found: handles.parse_half("T", found)),
        (handles.parse_half,),
        repair=with_handle_sum,
        text=True,
    ),
    Target(
        "transaction-id",
        lambda rng: handles.deferred_handle("T", 5).encode(),
        text(lambda found: handles.parse_deferred("T", found)),
        (handles.parse_deferred,),
        repair=with_handle_sum,
        text=True,
    ),
    Target(
        "recall-handle",
        lambda rng: handles.recall_handle("T", "broker-a", 1, "id", 5).encode(),
        text(lambda found: handles.parse_recall("T", found)),
        (handles.parse_recall,),
        text=True,
    ),
    Target(
        "host",
        lambda rng: rng.choice((b"10.0.0.1:10911", b"[fd00::1]:10911")),
        text(host.Host.parse),
        (host.Host.parse,),
        (ValueError,),
        text=True,
    ),
    Target("proxy-request", _method, _parse_method, (Request.parsed,)),
    Target(
        "forwarded-calls",
        made(forward_pb2.FromNode, KNOWN),
        from_wire(forward_pb2.FromNode, _forwarded),
        (frames.clients_from_pb, frames.context_from_pb),
    ),
    Target(
        "forwarded-answers",
        made(forward_pb2.FromMaster, KNOWN),
        from_wire(forward_pb2.FromMaster, _answered),
        (frames.error_from_pb,),
    ),
)
