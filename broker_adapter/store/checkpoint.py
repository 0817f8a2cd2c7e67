"""The checkpoint of the derived files, and the state image: two small documents of one form.

    0    4       what it is: "DLDC" checkpoint, "DLDI" image
    4    4       version, 1
    8    8       bytes of the table
    16   8       bytes of the metadata
    24   4       CRC32 of bytes 0-23 and of all that follows this field
    28           the table, in JSON; the metadata, as they give them

(big endian) The checkpoint says how far the derived files were synced and what they sum to. It is replaced
whole, after everything that it speaks of is durable.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.format.index_layout import IndexHeader, IndexShape
from broker_adapter.format.topic_names import check_topic_name
from broker_adapter.store.consume_queue import QueueState
from broker_adapter.store.consume_queues import QueuePosition
from broker_adapter.store.index_file import IndexState
from dledger import Applied
from dledger.platform import Disk, read_file, replace_file

FILE_NAME = "derived_checkpoint"

_HEAD = struct.Struct(">4sIQQ")
_CRC = struct.Struct(">I")
_CHECKPOINT = b"DLDC"
_IMAGE = b"DLDI"
_VERSION = 1


class Checkpoint(NamedTuple):
    """Durable: everything that was made of the log up to `applied`. Shapes are those of the files."""

    applied: Applied
    units_per_file: int
    index_shape: IndexShape
    queues: list[QueueState]
    index_files: list[IndexState]
    metadata: bytes
    misplaced: list[int]


class Image(NamedTuple):
    """What the log cannot tell any more once it is shortened."""

    queues: list[QueuePosition]
    metadata: bytes
    misplaced: list[int]


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    applied, units_per_file, shape, queues, index_files, metadata, misplaced = checkpoint
    table = {
        **_misplaced_to_json(misplaced),
        "applied": applied,
        "units_per_file": units_per_file,
        "index_shape": shape,
        "queues": queues,
        "index_files": index_files,
    }
    return _framed(_CHECKPOINT, table, metadata)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """StoredDataDamaged (IMAGE_DAMAGED) unless a checkpoint of this version was stored."""
    table, metadata = _unframed(_CHECKPOINT, data)
    try:
        queues = [QueueState(*queue)._replace(crcs=tuple(queue[-1])) for queue in table["queues"]]
        index_files = [
            IndexState(*file)._replace(header=IndexHeader(*file[1])) for file in table["index_files"]
        ]
        shape = IndexShape(*table["index_shape"])
        return Checkpoint(
            Applied(*table["applied"]),
            table["units_per_file"],
            shape,
            queues,
            index_files,
            metadata,
            _misplaced_from_json(table),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise _damaged(f"the table is none of a checkpoint: {error}") from None


def encode_image(image: Image) -> bytes:
    table = {"queues": image.queues, **_misplaced_to_json(image.misplaced)}
    return _framed(_IMAGE, table, image.metadata)


def decode_image(data: bytes) -> Image:
    """StoredDataDamaged (IMAGE_DAMAGED) unless an image of this version was stored."""
    table, metadata = _unframed(_IMAGE, data)
    try:
        queues = [_position(*position) for position in table["queues"]]
        return Image(queues, metadata, _misplaced_from_json(table))
    except (TypeError, ValueError, KeyError, BrokerError) as error:
        raise _damaged(f"the table is none of an image: {error}") from None


def _misplaced_to_json(indexes: list[int]) -> dict[str, list[int]]:
    """Nothing without any, as hardly ever there is one: the bytes are those of earlier versions then."""
    return {"misplaced": indexes} if indexes else {}


def _misplaced_from_json(table: dict[str, Any]) -> list[int]:
    """TypeError, ValueError."""
    return [int(index) for index in table.get("misplaced", [])]


def _position(topic: str, queue_id: int, next_offset: int, floor: int) -> QueuePosition:
    """Of a queue that can be: topics become names of directories. BrokerError, TypeError, ValueError."""
    check_topic_name(topic)
    if not (0 <= queue_id < 1 << 31 and 0 <= floor <= next_offset < 1 << 63):
        raise ValueError(f"queue {queue_id} of {topic} from {floor} to {next_offset}")
    return QueuePosition(topic, int(queue_id), int(next_offset), int(floor))


def write_checkpoint(disk: Disk, root: Path, checkpoint: Checkpoint) -> None:
    """Durable on return."""
    replace_file(disk, root / FILE_NAME, encode_checkpoint(checkpoint))


def read_checkpoint(disk: Disk, root: Path) -> Checkpoint | None:
    """None if there is none. StoredDataDamaged (IMAGE_DAMAGED), OSError."""
    try:
        return decode_checkpoint(read_file(disk, root / FILE_NAME))
    except FileNotFoundError:
        return None


def remove_checkpoint(disk: Disk, root: Path) -> None:
    """Durable on return, and before anything that it speaks of is changed."""
    if disk.exists(root / FILE_NAME):
        disk.unlink(root / FILE_NAME)
        disk.sync_directory(root)


def _framed(magic: bytes, table: dict[str, Any], metadata: bytes) -> bytes:
    text = json.dumps(table, separators=(",", ":")).encode()
    head = _HEAD.pack(magic, _VERSION, len(text), len(metadata))
    crc = crc32(metadata, crc32(text, crc32(head)))
    return b"".join((head, _CRC.pack(crc), text, metadata))


def _unframed(magic: bytes, data: bytes) -> tuple[Any, bytes]:
    begin = _HEAD.size + _CRC.size
    if len(data) < begin:
        raise _damaged(f"{len(data)} bytes are too few")
    found, version, text_size, metadata_size = _HEAD.unpack_from(data)
    if found != magic or version != _VERSION:
        raise _damaged(f"{found!r} of version {version}, not {magic!r} of version {_VERSION}")
    if len(data) != begin + text_size + metadata_size:
        raise _damaged(f"{len(data)} bytes, not {begin + text_size + metadata_size}")
    if crc32(data[begin:], crc32(data[: _HEAD.size])) != _CRC.unpack_from(data, _HEAD.size)[0]:
        raise _damaged("the crc does not match")
    try:
        return json.loads(data[begin : begin + text_size]), data[begin + text_size :]
    except (ValueError, RecursionError) as error:
        raise _damaged(f"the table is not JSON: {error}") from None


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.IMAGE_DAMAGED, problem)
