"""The complete state derived from commands in the log: metadata and delivery, with one image.

    0    4    "DRSI"
    4    1    version, 1 so far
    5    8    size of the metadata image
    13   n    the metadata image, followed by the delivery image up to the end

Integers are big endian. An image with metadata only, as written by releases without delivery, is accepted,
too.
"""

from __future__ import annotations

import struct

from broker_adapter.delivery_state import image
from broker_adapter.delivery_state.deferred_messages import IndexMark, LogPosition
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.metadata.image import MAGIC as METADATA_MAGIC
from broker_adapter.metadata.state import MetadataState

MAGIC = b"DRSI"
VERSION = 1

_HEADER = struct.Struct(">4sBQ")


class ReplicatedState:
    """Metadata and delivery state. Implements the Dispatcher's `Metadata`. Runs on the machine's thread."""

    def __init__(self, metadata: MetadataState, delivery: DeliveryState) -> None:
        """`metadata` reports commands that took effect to `delivery` (`on_done`)."""
        self._metadata = metadata
        self._delivery = delivery
        self._mark: IndexMark | None = None  # of the current checkpoint

    def apply(self, index: int, body: bytes) -> None:
        self._metadata.apply(index, body)

    def apply_delivery(self, index: int, stamp_ms: int, body: bytes, pos: int, size: int, term: int) -> None:
        self._delivery.apply(index, stamp_ms, body, LogPosition(pos, size), term)

    def save(self) -> bytes:
        return self._join(image.save(self._delivery))

    def checkpoint(self) -> bytes:
        delivery, self._mark = image.checkpoint(self._delivery)
        return self._join(delivery)

    def sync(self) -> None:
        self._delivery.sync_index()

    def checkpointed(self) -> None:
        if self._mark is not None:
            self._delivery.deferred.kept(self._mark)

    def close(self) -> None:
        self._delivery.close()

    def load(self, data: bytes) -> None:
        """Load an image that `save` of this or an earlier release has made.

        Raises StoredDataDamaged (METADATA_DAMAGED).
        """
        metadata, delivery = _split(data)
        self._metadata.load(metadata)
        image.load(self._delivery, delivery)

    def restore(self, data: bytes) -> None:
        """Load an image that `checkpoint` has made. Raises the errors of `load`, and OSError."""
        metadata, delivery = _split(data)
        self._metadata.load(metadata)
        image.restore(self._delivery, delivery)

    def _join(self, delivery: bytes) -> bytes:
        metadata = self._metadata.save()
        return b"".join((_HEADER.pack(MAGIC, VERSION, len(metadata)), metadata, delivery))


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Return the metadata image and the delivery image."""
    metadata, delivery = data, b""
    if data and not data.startswith(METADATA_MAGIC):
        if len(data) < _HEADER.size:
            raise _damaged(f"the image is too short: {len(data)} bytes")
        magic, version, size = _HEADER.unpack_from(data)
        if (magic, version) != (MAGIC, VERSION):
            raise _damaged(f"unexpected magic {magic!r} or version {version}")
        metadata = data[_HEADER.size : _HEADER.size + size]
        delivery = data[_HEADER.size + size :]
    return metadata, delivery


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.METADATA_DAMAGED, f"not a valid state image: {problem}")
