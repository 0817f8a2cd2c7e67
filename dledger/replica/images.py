"""State images: what the leader requests, and the images that earlier releases wrote into the log.

See Retention in docs/guarantees.md. The files are in dledger.store.image_files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from dledger.store.api import BatchHead, LogStore
from dledger.store.format.internal import (
    ImageBegin,
    ImageChunk,
    ImageEnd,
    Internal,
    decode_internal,
    strip_stamp,
)
from dledger.store.image_files import ImageMark, ImageWriter

_SESSIONS_LENGTH = struct.Struct(">I")


class ImageRequest(NamedTuple):
    """Save the state after all entries before the mark at `index`, once the mark is committed."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    sessions: bytes  # the session table at the end of the log before the mark


class LoggedImage(NamedTuple):
    """A complete image in the log: its first and its last entry."""

    first_index: int
    last_index: int


def newest_logged(heads: Iterable[BatchHead], upto: int) -> LoggedImage | None:
    """Return the newest image that the log contains completely, up to an index."""
    begun, newest, chunks = -1, None, 0
    for batch in heads:
        if batch.last_index > upto:
            break
        match _value(batch):
            case ImageBegin():
                begun, chunks = batch.first_index, 0  # only the newest can still be completed
            case ImageChunk(image_index, number) if image_index == begun and number == chunks:
                chunks += 1
            case ImageEnd(image_index, count) if image_index == begun and count == chunks:
                newest = LoggedImage(begun, batch.last_index)
            case _:
                pass
    return newest


def copy_image(store: LogStore, image: LoggedImage) -> bool:
    """Copy an image of the log into files. Returns False if it is damaged.

    Raises StorageError and ReadFailed.
    """
    mark = store.entry(image.first_index)
    writer: ImageWriter | None = None
    head, crc, expected = b"", 0, -1
    try:
        for batch in store.iter_heads(image.first_index):
            value = _value(batch)
            if isinstance(value, ImageEnd) or batch.last_index > image.last_index:
                expected = value.crc if isinstance(value, ImageEnd) else -1
                break
            if not isinstance(value, ImageChunk):
                continue
            crc = crc32(value.data, crc)
            if writer is not None:
                writer.write(value.data)
                continue
            head += value.data
            sessions_end = _sessions_end(head)
            if 0 < sessions_end <= len(head):
                sessions = head[_SESSIONS_LENGTH.size : sessions_end]
                writer = store.images.writer(
                    ImageMark(mark.index, mark.term, mark.pos), sessions, is_copy=True
                )
                writer.write(head[sessions_end:])
        if writer is None or crc != expected:
            return False
        writer.finish()
        writer = None
        return True
    finally:
        if writer is not None:
            writer.abandon()


def _sessions_end(head: bytes) -> int:
    """Return where the sessions end in an image; 0 if that is not known yet."""
    if len(head) < _SESSIONS_LENGTH.size:
        return 0
    return _SESSIONS_LENGTH.size + int(_SESSIONS_LENGTH.unpack_from(head)[0])


def _value(batch: BatchHead) -> Internal:
    return strip_stamp(decode_internal(batch.head))[1]
