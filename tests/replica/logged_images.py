"""Images in the log, as release 0.2 wrote them, and images in files."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from zlib_ng.zlib_ng import crc32

from dledger.store.api import LogStore
from dledger.store.format.batch import encode_batch
from dledger.store.format.internal import (
    ImageBegin,
    ImageChunk,
    ImageEnd,
    Internal,
    StampedInternal,
    encode_internal,
)
from dledger.store.image_files import ImageFiles, ImageMark, StoredImage


def logged_image(index: int, sessions: bytes, state: bytes, *, chunk_bytes: int = 60) -> Iterator[Internal]:
    """The entries of an image, the first of which gets this index."""
    whole = struct.pack(">I", len(sessions)) + sessions + state
    chunks = [whole[at : at + chunk_bytes] for at in range(0, len(whole), chunk_bytes)]
    yield ImageBegin()
    for number, chunk in enumerate(chunks):
        yield ImageChunk(index, number, chunk)
    yield ImageEnd(index, len(chunks), crc32(whole))


def append_internal(store: LogStore, value: Internal, term: int = 1) -> int:
    """Append an entry of the log's own, durably. Returns its index."""
    head = encode_internal(StampedInternal(1000, value))
    size = store.identity.data_file_size
    store.append([encode_batch(store.tail, term, [], data_file_size=size, head=head)])
    store.sync()
    return store.end_index


def mark_of(store: LogStore, index: int) -> ImageMark:
    entry = store.entry(index)
    return ImageMark(entry.index, entry.term, entry.pos)


def write_image(files: ImageFiles, mark: ImageMark, sessions: bytes = b"", state: bytes = b"") -> StoredImage:
    writer = files.writer(mark, sessions)
    writer.write(state)
    writer.finish()
    image = files.stored()
    assert image is not None
    return image
