"""Inputs on which decoders once went on for ever, and histories of others with any text in them.

`tests/fuzz` changes inputs of every decoder.
"""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from chaos.checker.readers import jepsen
from chaos.checker.readers.history import ReaderError
from dledger import EntryRun
from dledger.store.format.batch import DamagedBatch, decode_entries, unpack_header, verify_entries
from tests.store.helpers import make_batches

_LIMIT_S = 2.0


class TookTooLong(BaseException):
    """No `except Exception` takes it for an answer."""


@contextmanager
def limited() -> Iterator[None]:
    """Ends an input that takes too much CPU time: a decoder without progress fails, and does not hang."""

    def over(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("size", [0, 47, -1, 1 << 30])
def test_a_header_of_a_size_that_cannot_be_is_no_endless_walk(size: int) -> None:
    data = bytearray(b"".join(bytes(batch.data) for batch in make_batches(6)))
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
