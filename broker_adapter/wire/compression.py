"""Compression of message bodies: RocketMQ's CompressionType and its Compressors.

The packages for LZ4 and Zstandard are optional (`dledger[compression]`) and are imported on first use.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import Any, Final

from broker_adapter.errors import Status, StoredDataDamaged, error_for
from broker_adapter.wire.sys_flag import COMPRESSED, COMPRESSION_MASK

#: RocketMQ's default (`compressLevel`) for zlib and Zstandard. LZ4 has no levels in RocketMQ.
_LEVEL: Final = 5
_TYPE_SHIFT: Final = 8
#: zlib detects whether a body has the header of zlib or of gzip, which clients of RocketMQ 5 may send under
#: the same flag.
_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32


class CompressionType(IntEnum):
    """The compression method of message bodies, with RocketMQ's numbers."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits of a compressed message's sys_flag."""
        return COMPRESSED | self << _TYPE_SHIFT


def compressor_of(method: CompressionType) -> Callable[[bytes], bytes]:
    """Return the function that compresses a body. Its output is readable by RocketMQ's clients.

    Raises CompressionUnavailable if the package for this method is not installed.
    """
    if method is CompressionType.ZLIB:
        return lambda body: zlib.compress(body, _LEVEL)
    if method is CompressionType.ZSTD:
        zstandard = _package("zstandard")
        return lambda body: bytes(zstandard.ZstdCompressor(level=_LEVEL).compress(body))
    frame = _package("lz4.frame")
    # RocketMQ's reader, lz4-java, rejects blocks that depend on earlier blocks. Its writer uses blocks of up
    # to 4 MiB and does not write the size of the content.
    settings = {"block_size": frame.BLOCKSIZE_MAX4MB, "block_linked": False, "store_size": False}
    return lambda body: bytes(frame.compress(body, **settings))


def decompress(body: bytes, sys_flag: int, max_bytes: int) -> bytes:
    """Return the body of a message without compression. `sys_flag`: the flag of the message.

    Raises StoredDataDamaged (BODY_UNREADABLE) if the body is invalid, or larger than `max_bytes` after
    decompression. Raises CompressionUnavailable if the package for its compression is not installed.
    """
    if not sys_flag & COMPRESSED:
        return body
    number = (sys_flag & COMPRESSION_MASK) >> _TYPE_SHIFT
    try:
        # Old clients know only zlib and set no type.
        method = CompressionType(number) if number else CompressionType.ZLIB
    except ValueError:
        raise _unreadable(f"its compression type {number} is unknown") from None
    content = _DECODERS[method](body, max_bytes)
    if content is None:
        raise _unreadable(f"it is truncated, or larger than {max_bytes} bytes after decompression")
    return content


def _from_zlib(body: bytes, max_bytes: int) -> bytes | None:
    """Like the other decoders, return None if the body is truncated or larger than `max_bytes`."""
    reader = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        content = reader.decompress(body, max_bytes)
    except zlib.error as error:
        raise _unreadable(f"zlib: {error}") from None
    return content if reader.eof else None


def _from_lz4(body: bytes, max_bytes: int) -> bytes | None:
    reader = _package("lz4.frame").LZ4FrameDecompressor()
    try:
        content = bytes(reader.decompress(body, max_length=max_bytes))
    except RuntimeError as error:
        raise _unreadable(f"LZ4: {error}") from None
    return content if reader.eof else None


def _from_zstd(body: bytes, max_bytes: int) -> bytes | None:
    zstandard = _package("zstandard")
    try:
        # Frames of streaming writers such as RocketMQ's do not contain the size, which is then -1. Otherwise
        # the library would allocate the memory that the frame claims to need.
        if zstandard.frame_content_size(body) > max_bytes:
            return None
        return bytes(zstandard.ZstdDecompressor().decompress(body, max_output_size=max_bytes))
    except zstandard.ZstdError as error:
        # This also covers truncated and too large frames without a size.
        raise _unreadable(f"Zstandard, up to {max_bytes} bytes: {error}") from None


_DECODERS: Final = {
    CompressionType.LZ4: _from_lz4,
    CompressionType.ZSTD: _from_zstd,
    CompressionType.ZLIB: _from_zlib,
}


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        text = f"the package of {name} is not installed: pip install 'dledger[compression]'"
        raise error_for(Status.COMPRESSION_UNAVAILABLE, text) from None


def _unreadable(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.BODY_UNREADABLE, f"the body cannot be decompressed: {problem}")
