"""Every decoder makes progress or raises its documented error, whatever the bytes.

Inputs are made of valid ones, and sums are put right after the mutation: else nothing behind them is reached.
"""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import StoredDataDamaged
from broker_adapter.format.consume_queue_unit import decode_units
from broker_adapter.format.message import decode, decode_all
from broker_adapter.metadata.records import decode as decode_metadata
from broker_adapter.metadata.records import encode as encode_metadata
from broker_adapter.metadata.state import MetadataState
from broker_adapter.pop import image as delivery_image
from broker_adapter.pop.records import decode as decode_delivery
from broker_adapter.pop.records import encode as encode_delivery
from broker_adapter.pop.state import DeliveryState
from chaos.checker.readers import jepsen
from chaos.checker.readers.history import ReaderError
from dledger import EntryRun
from dledger.core.sessions import SessionTable
from dledger.store.format.batch import DamagedBatch, decode_entries, unpack_header, verify_entries
from dledger.store.format.internal import ImageChunk, SessionBatch, Stamped, decode_internal, encode_internal
from tests.broker_adapter.store.helpers import V6, Log
from tests.broker_adapter.store.poison import delivery_elements, metadata_commands, mutated
from tests.store.helpers import make_batches

_LIMIT_S = 2.0
_INPUTS = 400


class TookTooLong(BaseException):
    """No `except Exception` takes it for an answer."""


@contextmanager
def limited() -> Iterator[None]:
    """Ends an input that takes too long: a decoder that makes no progress fails, and does not hang."""

    def over(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def entries(rng: Random) -> bytes:
    return b"".join(bytes(batch.data) for batch in make_batches(6, seed=rng.randrange(99)))


def with_entry_sums(data: bytes) -> bytes:
    """Of the first entry, the body's sum put right."""
    size = struct.unpack_from(">i", data, 4)[0] if len(data) >= 48 else 0
    if not 48 <= size <= len(data):
        return data
    body = data[48:size]
    return data[:40] + crc32(body).to_bytes(4) + data[44:]


def message(rng: Random) -> bytes:
    log = Log()
    return log.message(tag="A", keys="k", host=rng.choice((None, V6)), body=rng.randbytes(9)).body


def with_message_sums(data: bytes) -> bytes:
    if len(data) < 92:
        return data
    size = struct.unpack_from(">i", data, 84)[0]
    crc = crc32(data[88 : 88 + max(0, size)]) & 0x7FFFFFFF
    return len(data).to_bytes(4) + data[4:8] + crc.to_bytes(4) + data[12:]


def metadata(rng: Random) -> bytes:
    return encode_metadata(rng.choice(metadata_commands()))


def delivery(rng: Random) -> bytes:
    return encode_delivery(delivery_elements(rng, DeliveryState()))


def states(rng: Random) -> tuple[MetadataState, DeliveryState]:
    kept, given = MetadataState(), DeliveryState()
    for index, command in enumerate(metadata_commands()[:6]):
        kept.apply(index, encode_metadata(command))
    for index in range(20):
        given.apply(index, 10**12 + index, encode_delivery(delivery_elements(rng, given)))
    return kept, given


def with_image_sums(data: bytes) -> bytes:
    return data[:5] + crc32(data[9:]).to_bytes(4) + data[9:]


def sessions(rng: Random) -> bytes:
    table = SessionTable()
    for index in range(5):
        table.opened(index)
    return table.encode_all()


def internal(rng: Random) -> bytes:
    value = rng.choice((SessionBatch(1, 2, 3, 4), ImageChunk(5, 6, b"data")))
    return encode_internal(Stamped(1000, value))


def as_is(data: bytes) -> bytes:
    return data


DECODERS: dict[
    str, tuple[Callable[[Random], bytes], Callable[[bytes], bytes], Callable[[bytes], Any], Any]
] = {
    "decode_entries": (entries, as_is, decode_entries, DamagedBatch),
    "verify_entries": (entries, with_entry_sums, verify_entries, DamagedBatch),
    "unpack_header": (lambda rng: entries(rng)[:48], as_is, unpack_header, DamagedBatch),
    "EntryRun": (entries, as_is, lambda data: (bool(EntryRun([data])), list(EntryRun([data]))), DamagedBatch),
    "decode_internal": (internal, as_is, decode_internal, ()),
    "SessionTable.load": (sessions, as_is, lambda data: SessionTable().load(data), ValueError),
    "message": (message, with_message_sums, decode, StoredDataDamaged),
    "messages": (
        lambda rng: message(rng) + message(rng),
        as_is,
        decode_all,
        StoredDataDamaged,
    ),
    "metadata command": (metadata, as_is, decode_metadata, StoredDataDamaged),
    "delivery command": (delivery, as_is, decode_delivery, StoredDataDamaged),
    "metadata image": (
        lambda rng: states(rng)[0].save(),
        with_image_sums,
        lambda data: MetadataState().load(data),
        StoredDataDamaged,
    ),
    "delivery image": (
        lambda rng: delivery_image.save(states(rng)[1]),
        with_image_sums,
        lambda data: delivery_image.load(DeliveryState(), data),
        StoredDataDamaged,
    ),
    "ConsumeQueue units": (lambda rng: rng.randbytes(60), as_is, decode_units, StoredDataDamaged),
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_makes_progress_or_raises_its_own_error(name: str) -> None:
    valid, put_right, decoder, documented = DECODERS[name]
    rng = Random(name)
    outcomes = set()
    for _ in range(_INPUTS):
        data = valid(rng)
        with limited():
            decoder(data)  # the seed itself is valid
            try:
                decoder(put_right(mutated(data, rng)))
                outcomes.add("decoded")
            except documented:
                outcomes.add("refused")
    assert "decoded" in outcomes or name == "ConsumeQueue units"
    assert not documented or "refused" in outcomes


@pytest.mark.parametrize("size", [0, 47, -1, 1 << 30])
def test_a_header_of_a_size_that_cannot_be_is_no_endless_walk(size: int) -> None:
    data = bytearray(entries(Random(1)))
    data[4:8] = struct.pack(">i", size)
    for decoder in (decode_entries, verify_entries, lambda found: list(EntryRun([found]))):
        with limited(), pytest.raises(DamagedBatch):
            decoder(bytes(data))


def test_fewer_bytes_than_a_header_are_none() -> None:
    with pytest.raises(DamagedBatch):
        unpack_header(bytes(47))


HISTORY = [
    {"type": kind, "f": f, "process": process, "value": value, "time": 1000 + at}
    for at, (kind, f, process, value) in enumerate(
        [
            ("invoke", "send", 0, [["send", "k", [1, 5]]]),
            ("ok", "send", 0, [["send", "k", [1, 5]]]),
            ("invoke", "poll", 1, [["poll"]]),
            ("ok", "poll", 1, [["poll", {"k": [[1, 5]]}]]),
            ("info", "kill", "nemesis", {"n1": "killed"}),
            ("invoke", "assign", 1, ["k"]),
            ("ok", "assign", 1, ["k"]),
        ]
    )
]
_ODD = ["[", "]", "{", "}", "#{", '"', "nil", "#_", "#x", "9" * 5000, "1e999", "-", "\\u0000", "[[]]"]
_ODD += ["{[] 1}", "{{} 1}"]


def edn(value: object) -> str:
    match value:
        case dict():
            return "{" + " ".join(f"{edn(k)} {edn(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + " ".join(map(edn, value)) + "]"
        case str():
            return f":{value}"
    return json.dumps(value)


@pytest.mark.parametrize("suffix", [".edn", ".json"])
def test_a_history_with_any_text_is_read_or_refused(tmp_path: Path, suffix: str) -> None:
    rng = Random(suffix)
    text = "\n".join(map(edn if suffix == ".edn" else json.dumps, HISTORY))
    refused = 0
    for number in range(250):
        changed = text
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(len(changed))
            end = at + rng.choice((0, 1, 5))
            changed = changed[:at] + rng.choice(_ODD) + changed[end:]
        source = tmp_path / f"h{number}{suffix}"
        source.write_text(changed)
        with limited():
            try:
                jepsen.convert(source, tmp_path / f"run{number}", "run")
            except ReaderError:
                refused += 1
    assert refused > 0


@pytest.mark.parametrize("depth", [150, 900, 5000, 100_000])
def test_deep_values_are_read_or_refused(tmp_path: Path, depth: int) -> None:
    value = "[" * depth + "]" * depth
    for suffix, text in (
        (".edn", "{:type :invoke, :f :add, :process 0, :value %s, :time 1}\n"),
        (".json", '{"type": "invoke", "f": "add", "process": 0, "value": %s, "time": 1}\n'),
    ):
        source = tmp_path / f"deep{suffix}"
        source.write_text(text % value)
        with limited():
            try:
                jepsen.convert(source, tmp_path / f"run{suffix}", "run")
            except ReaderError:
                assert depth > 150
