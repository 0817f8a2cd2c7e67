"""All that the commands in the log make, as one state with one image: metadata, and delivery beside it.

    0    4    "DRSI"
    4    1    version, 1 so far
    5    8    bytes of the metadata's image
    13   n    the metadata's image; the delivery's up to the end

(big endian) An image of metadata alone, as it was before there was delivery, is taken as well.
"""

from __future__ import annotations

import struct

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.metadata.image import MAGIC as METADATA_MAGIC
from broker_adapter.metadata.state import MetadataState
from broker_adapter.pop import image
from broker_adapter.pop.deferred_messages import IndexMark, LogPosition
from broker_adapter.pop.state import DeliveryState

MAGIC = b"DRSI"
VERSION = 1

_HEADER = struct.Struct(">4sBQ")


class ReplicatedState:
    """Implements the Dispatcher's `Metadata`. On the machine's thread."""

    def __init__(self, metadata: MetadataState, delivery: DeliveryState) -> None:
        """`metadata` tells `delivery` what took effect (`on_done`)."""
        self._metadata = metadata
        self._delivery = delivery
        self._mark: IndexMark | None = None  # of the checkpoint that is being made

    def apply(self, index: int, body: bytes) -> None:
        self._metadata.apply(index, body)

    def apply_delivery(self, index: int, stamp_ms: int, body: bytes, pos: int, size: int) -> None:
        self._delivery.apply(index, stamp_ms, body, LogPosition(pos, size))

    def save(self) -> bytes:
        return self._joined(image.save(self._delivery))

    def checkpoint(self) -> bytes:
        delivery, self._mark = image.checkpoint(self._delivery)
        return self._joined(delivery)

    def sync(self) -> None:
        self._delivery.sync_index()

    def checkpointed(self) -> None:
        if self._mark is not None:
            self._delivery.deferred.kept(self._mark)

    def close(self) -> None:
        self._delivery.close()

    def load(self, data: bytes) -> None:
        """StoredDataDamaged (METADATA_DAMAGED) if it is not what `save` gives, now or before."""
        metadata, delivery = _parted(data)
        self._metadata.load(metadata)
        image.load(self._delivery, delivery)

    def restore(self, data: bytes) -> None:
        """As `load`, of what `checkpoint` gave; OSError."""
        metadata, delivery = _parted(data)
        self._metadata.load(metadata)
        image.restore(self._delivery, delivery)

    def _joined(self, delivery: bytes) -> bytes:
        metadata = self._metadata.save()
        return b"".join((_HEADER.pack(MAGIC, VERSION, len(metadata)), metadata, delivery))


def _parted(data: bytes) -> tuple[bytes, bytes]:
    """The metadata's image, and that of delivery."""
    metadata, delivery = data, b""
    if data and not data.startswith(METADATA_MAGIC):
        if len(data) < _HEADER.size:
            raise _damaged(f"{len(data)} bytes are too few")
        magic, version, size = _HEADER.unpack_from(data)
        if (magic, version) != (MAGIC, VERSION):
            raise _damaged(f"magic {magic!r}, version {version}")
        metadata = data[_HEADER.size : _HEADER.size + size]
        delivery = data[_HEADER.size + size :]
    return metadata, delivery


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.METADATA_DAMAGED, f"no image of the state: {problem}")
