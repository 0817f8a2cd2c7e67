"""Compressed bodies: RocketMQ's clients read ours, and ours reads theirs and nothing too large."""

from __future__ import annotations

import gzip
import sys
import zlib
from random import Random

import lz4.frame
import pytest
import zstandard

from broker_adapter.errors import CompressionUnavailable, Status, StoredDataDamaged
from broker_adapter.wire.compression import CompressionType, compressor_of, decompress
from broker_adapter.wire.sys_flag import COMPRESSED, COMPRESSION_MASK

LIMIT = 1 << 20
#: `abc` a hundred times, from the Compressors of the Java clients 4.9.8 and 5.5.0 (level 5).
FROM_JAVA = {
    CompressionType.LZ4: "04224d186070730e0000003f6162630300ff1250626361626300000000",
    CompressionType.ZSTD: "28b52ffd005854000018616263010026aa6e08010000",
    CompressionType.ZLIB: "785e4b4c4a4e1c45c42100884d72d9",
}


def test_numbers_and_flags_are_those_of_rocketmq() -> None:
    flags = {method.name: (method.value, method.sys_flag) for method in CompressionType}
    assert flags == {"LZ4": (1, 0x101), "ZSTD": (2, 0x201), "ZLIB": (3, 0x301)}


@pytest.mark.parametrize("method", CompressionType)
def test_what_java_wrote_is_read(method: CompressionType) -> None:
    assert decompress(bytes.fromhex(FROM_JAVA[method]), method.sys_flag, 300) == b"abc" * 100


@pytest.mark.parametrize("size", [0, 1, 4096, 65_536, 65_537, 300_000, LIMIT])
@pytest.mark.parametrize("method", CompressionType)
def test_what_is_compressed_is_read_again(method: CompressionType, size: int) -> None:
    half = size // 2
    body = Random(size).randbytes(half) + bytes(size - half)
    assert decompress(compressor_of(method)(body), method.sys_flag, LIMIT) == body


@pytest.mark.parametrize("size", [300, 65_537, 300_000, 5 << 20])
def test_frames_of_lz4_are_such_as_java_reads(size: int) -> None:
    """LZ4FrameInputStream fails if blocks depend on earlier ones."""
    info = lz4.frame.get_frame_info(compressor_of(CompressionType.LZ4)(Random(1).randbytes(size)))
    assert not info["block_linked"] and info["content_size"] == 0
    assert info["block_size"] <= 4 << 20


def test_old_clients_set_no_type_and_those_of_rocketmq_5_may_send_gzip() -> None:
    for body in (zlib.compress(b"old"), gzip.compress(b"old")):
        assert decompress(body, COMPRESSED, LIMIT) == b"old"
    assert decompress(b"not compressed", COMPRESSION_MASK, LIMIT) == b"not compressed"


def streamed(body: bytes) -> bytes:
    """A frame of Zstandard without the size of its content, as RocketMQ writes it."""
    writer = zstandard.ZstdCompressor().compressobj()
    return writer.compress(body) + writer.flush()


@pytest.mark.parametrize(
    ("method", "body"),
    [
        *((method, compressor_of(method)(bytes(LIMIT + 1))) for method in CompressionType),
        (CompressionType.ZSTD, streamed(bytes(LIMIT + 1))),
        *((method, compressor_of(method)(bytes(100))[:-1]) for method in CompressionType),
        (CompressionType.ZSTD, streamed(bytes(100))[:-1]),
        *((method, b"something else") for method in CompressionType),
        *((method, b"") for method in CompressionType),
    ],
)
def test_too_large_and_damaged_bodies_are_an_error_of_its_own(method: CompressionType, body: bytes) -> None:
    with pytest.raises(StoredDataDamaged) as refused:
        decompress(body, method.sys_flag, LIMIT)
    assert refused.value.status is Status.BODY_UNREADABLE


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(StoredDataDamaged, match="type 4 is unknown"):
        decompress(zlib.compress(b"x"), COMPRESSED | 4 << 8, LIMIT)


@pytest.mark.parametrize(
    ("method", "package"), [(CompressionType.LZ4, "lz4.frame"), (CompressionType.ZSTD, "zstandard")]
)
def test_a_missing_package_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, method: CompressionType, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for attempt in (
        lambda: compressor_of(method),
        lambda: decompress(bytes.fromhex(FROM_JAVA[method]), method.sys_flag, LIMIT),
    ):
        with pytest.raises(CompressionUnavailable, match=r"pip install 'dledger\[compression\]'"):
            attempt()
    assert compressor_of(CompressionType.ZLIB)(b"x")
