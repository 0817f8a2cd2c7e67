"""Checkpoint of the derived files, and state image: two documents of the same format.

    0    4       type: "DLDC" checkpoint, "DLDI" image
    4    4       version, 1
    8    8       size of the table
    16   8       size of the metadata
    24   4       CRC32 of bytes 0-23 and of everything after this field
    28           the table, in JSON; the metadata, in their own format

(big endian) The checkpoint states how far the derived files were synced, and their checksums. It is replaced
atomically, after all data that it refers to is durable.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.store.consume_queue import QueueState
from broker_adapter.store.consume_queues import Incarnation, QueuePosition
from broker_adapter.store.index_file import IndexState
from broker_adapter.wire.index_layout import IndexHeader, IndexShape
from broker_adapter.wire.topic_names import check_topic_name
from dledger import Applied
from dledger.infra.files.disk import Disk, read_file, replace_file

FILE_NAME = "derived_checkpoint"

_HEAD = struct.Struct(">4sIQQ")
_CRC = struct.Struct(">I")
_CHECKPOINT = b"DLDC"
_IMAGE = b"DLDI"
_VERSION = 1


class DerivedCheckpoint(NamedTuple):
    """State of the derived files, which durably cover the log up to `applied`."""

    applied: Applied
    units_per_file: int
    index_shape: IndexShape
    queues: list[QueueState]
    index_files: list[IndexState]
    metadata: bytes
    misplaced: list[int]
    incarnations: list[Incarnation]


class DerivedImage(NamedTuple):
    """State that cannot be rebuilt from a log whose start was purged."""

    queues: list[QueuePosition]
    metadata: bytes
    misplaced: list[int]


def encode_checkpoint(checkpoint: DerivedCheckpoint) -> bytes:
    applied, units_per_file, shape, queues, index_files, metadata, misplaced, incarnations = checkpoint
    table = {
        **_misplaced_to_json(misplaced),
        **({"incarnations": incarnations} if incarnations else {}),
        "applied": applied,
        "units_per_file": units_per_file,
        "index_shape": shape,
        "queues": queues,
        "index_files": index_files,
    }
    return _framed(_CHECKPOINT, table, metadata)


def decode_checkpoint(data: bytes) -> DerivedCheckpoint:
    """Parse a checkpoint.

    Raises StoredDataDamaged (IMAGE_DAMAGED) if it is invalid or has another version.
    """
    table, metadata = _unframed(_CHECKPOINT, data)
    try:
        queues = [QueueState(*queue)._replace(crcs=tuple(queue[-1])) for queue in table["queues"]]
        index_files = [
            IndexState(*file)._replace(header=IndexHeader(*file[1])) for file in table["index_files"]
        ]
        shape = IndexShape(*table["index_shape"])
        rows = table.get("incarnations", [])
        return DerivedCheckpoint(
            Applied(*table["applied"]),
            table["units_per_file"],
            shape,
            queues,
            index_files,
            metadata,
            _misplaced_from_json(table),
            [Incarnation(str(topic), int(queue_id), int(at)) for topic, queue_id, at in rows],
        )
    except (TypeError, ValueError, KeyError) as error:
        raise _damaged(f"the data is not a checkpoint table: {error}") from None


def encode_image(image: DerivedImage) -> bytes:
    table = {"queues": image.queues, **_misplaced_to_json(image.misplaced)}
    return _framed(_IMAGE, table, image.metadata)


def decode_image(data: bytes) -> DerivedImage:
    """Parse an image. Raises StoredDataDamaged (IMAGE_DAMAGED) if it is invalid or has another version."""
    table, metadata = _unframed(_IMAGE, data)
    try:
        queues = [_position(*position) for position in table["queues"]]
        return DerivedImage(queues, metadata, _misplaced_from_json(table))
    except (TypeError, ValueError, KeyError, BrokerError) as error:
        raise _damaged(f"the data is not an image table: {error}") from None


def _misplaced_to_json(indexes: list[int]) -> dict[str, list[int]]:
    """Omit the field if the list is empty, so that the bytes are the same as in earlier versions."""
    return {"misplaced": indexes} if indexes else {}


def _misplaced_from_json(table: dict[str, Any]) -> list[int]:
    """Parse the list. Raises TypeError or ValueError."""
    return [int(index) for index in table.get("misplaced", [])]


def _position(topic: str, queue_id: int, next_offset: int, floor: int) -> QueuePosition:
    """Check a position, because topics become directory names. Raises BrokerError, TypeError or
    ValueError.
    """
    check_topic_name(topic)
    if not (0 <= queue_id < 1 << 31 and 0 <= floor <= next_offset < 1 << 63):
        raise ValueError(
            f"invalid offsets for queue {queue_id} of topic {topic}: floor {floor}, next offset {next_offset}"
        )
    return QueuePosition(topic, int(queue_id), int(next_offset), int(floor))


def write_checkpoint(disk: Disk, root: Path, checkpoint: DerivedCheckpoint) -> None:
    """Replace the checkpoint durably."""
    replace_file(disk, root / FILE_NAME, encode_checkpoint(checkpoint))


def read_checkpoint(disk: Disk, root: Path) -> DerivedCheckpoint | None:
    """Read the checkpoint.

    Return None if there is none. Raises StoredDataDamaged (IMAGE_DAMAGED) or OSError.
    """
    try:
        return decode_checkpoint(read_file(disk, root / FILE_NAME))
    except FileNotFoundError:
        return None


def remove_checkpoint(disk: Disk, root: Path) -> None:
    """Remove the checkpoint durably. Call this before any data to which it refers is changed."""
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
        raise _damaged(f"the file is too short: {len(data)} bytes")
    found, version, text_size, metadata_size = _HEAD.unpack_from(data)
    if found != magic or version != _VERSION:
        raise _damaged(
            f"unexpected header: found {found!r} version {version}, expected {magic!r} version {_VERSION}"
        )
    if len(data) != begin + text_size + metadata_size:
        raise _damaged(f"the file is {len(data)} bytes long, expected {begin + text_size + metadata_size}")
    if crc32(data[begin:], crc32(data[: _HEAD.size])) != _CRC.unpack_from(data, _HEAD.size)[0]:
        raise _damaged("the crc does not match")
    try:
        return json.loads(data[begin : begin + text_size]), data[begin + text_size :]
    except (ValueError, RecursionError) as error:
        raise _damaged(f"the table is not JSON: {error}") from None


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.IMAGE_DAMAGED, problem)
