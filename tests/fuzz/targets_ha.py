"""What goes over a connection between master and slave."""

from __future__ import annotations

import struct
from contextlib import suppress
from random import Random

from broker_adapter.errors import HaRefused, Status, StoredDataDamaged
from broker_adapter.log.classic.ha.connection import SlaveProgress, start_for
from broker_adapter.log.classic.ha.handshake import (
    Challenge,
    HaIdentity,
    HandshakeReader,
    Introduction,
    LogRange,
    Refusal,
    Welcome,
    decode,
    encode_challenge,
    encode_introduction,
    encode_refusal,
    encode_welcome,
    error_of,
)
from broker_adapter.log.classic.ha.records import RecordReader, WholeRecords
from broker_adapter.log.classic.ha.transfers import ReportReader, TransferReader
from broker_adapter.wire.message import MessageRecord
from broker_adapter.wire.message import encode as encode_record
from tests.fuzz.target import Target

_FILE_SIZE = 512
_LOG = LogRange(_FILE_SIZE, 5 * _FILE_SIZE + 77, _FILE_SIZE)
_LAST_FILE = 5 * _FILE_SIZE


def _transfers(rng: Random) -> bytes:
    """Of a master that a slave of a log of one byte follows; or one that has nothing."""
    sent, position = b"", 1
    for _ in range(rng.randrange(1, 5)):
        data = rng.randbytes(rng.randrange(20))
        sent += struct.pack(">qi", position, len(data)) + data
        position += len(data)
    return sent


def _read_transfers(data: bytes) -> None:
    """In two pieces."""
    half = len(data) // 2
    for begins_anywhere in (False, True):
        reader = TransferReader(1, begins_anywhere=begins_anywhere)
        found = [*reader.feed(data[:half]), *reader.feed(data[half:])]
        size, begin = sum(len(one.data) for one in found), next((one.offset for one in found if one.data), 1)
        if size and size != reader.position - begin:
            raise AssertionError("bytes came twice, or not at all")


def _reports(rng: Random) -> bytes:
    """Of a slave that was sent all of `_LOG`."""
    offset, said = rng.choice((0, _FILE_SIZE, _LOG.end, 2000)), b""
    for _ in range(rng.randrange(1, 9)):
        said += struct.pack(">q", offset)
        offset = rng.randrange(offset or _LAST_FILE, _LOG.end + 1)
    return said


def _read_reports(data: bytes) -> None:
    """Nothing is acknowledged that was not sent."""
    reader, progress, half = ReportReader(), SlaveProgress(0.0), len(data) // 2
    for offset in (*reader.feed(data[:half]), *reader.feed(data[half:])):
        had_begun = progress.start is not None
        progress.report(offset, 0.0, _LOG, _LAST_FILE)
        if not had_begun:
            progress.sent_frame(_LOG.end - progress.sent)
        if not 0 <= progress.acked <= _LOG.end:
            raise AssertionError(f"{progress.acked} is acknowledged")


def _log(rng: Random) -> bytes:
    """Records and blanks."""
    log = b""
    for number in range(rng.randrange(1, 5)):
        body = rng.randbytes(rng.randrange(9))
        log += encode_record(MessageRecord("t", body, queue_offset=number, physical_offset=len(log)))
        blank = rng.choice((0, 8, 30))
        log += struct.pack(">II", blank, 0xCBD43194) + bytes(blank - 8) if blank else b""
    return log


def _read_log(data: bytes) -> None:
    """However it is cut, the same records."""
    half = len(data) // 2
    whole, cut = RecordReader(0), RecordReader(0)
    found = list(whole.feed(data))
    if [*cut.feed(data[:half]), *cut.feed(data[half:])] != found or cut.position != whole.position:
        raise AssertionError("it depends on where it is cut")


def _files(rng: Random) -> bytes:
    """As a master has them: blanks end files."""
    log = b""
    for number in range(rng.randrange(1, 12)):
        record = encode_record(
            MessageRecord(
                "t", rng.randbytes(rng.randrange(90)), queue_offset=number, physical_offset=len(log)
            )
        )
        left = _FILE_SIZE - len(log) % _FILE_SIZE
        if len(record) + 8 > left:
            log += struct.pack(">II", left, 0xCBD43194) + rng.randbytes(left - 8)
            continue
        log += record
    return log


def _copy_files(data: bytes) -> None:
    """What is taken is what came, in its place."""
    records, half, taken = WholeRecords(0, _FILE_SIZE), len(data) // 2, b""
    try:
        for piece in (data[:half], data[half:]):
            records.feed(piece)
            taken += records.take_complete()[1]
    finally:
        taken += records.take_complete()[1]
        if taken != data[: records.position]:
            raise AssertionError("other bytes are taken than came")


def _handshake(rng: Random) -> bytes:
    identity = HaIdentity(rng.choice(("main", "Ä")), "a", rng.randrange(3))
    log = LogRange(0, rng.randrange(99), _FILE_SIZE)
    proof = rng.choice((b"", rng.randbytes(32)))
    nonce = rng.randbytes(32)
    match rng.randrange(4):
        case 0:
            return encode_challenge(Challenge(1, nonce))
        case 1:
            return encode_introduction(
                Introduction(nonce, identity, log, 0, nonce, rng.random() < 0.5, proof)
            )
        case 2:
            return encode_welcome(Welcome(identity, log, rng.randrange(99), proof))
    return encode_refusal(Refusal(rng.choice((831, 834, 1)), rng.choice(("", "no"))))


def _read_handshake(data: bytes) -> None:
    """Twice: what is behind a frame is one, too."""
    reader = HandshakeReader()
    reader.feed(data + data)
    for _ in range(2):
        match reader.next():
            case None:
                raise HaRefused(Status.HA_HANDSHAKE_MISSING, "it is not complete")
            case Refusal() as refusal:
                error_of(refusal)
            case Introduction() as said:
                if encode_introduction(said) != data:
                    raise AssertionError("it is another one")
                with suppress(HaRefused):
                    start_for(said, _LOG, _LAST_FILE)
    if reader.rest():
        raise HaRefused(Status.HA_HANDSHAKE_MISSING, "more than two frames")


def with_size(data: bytes) -> bytes:
    """The frame's own."""
    return data if len(data) < 7 else data[:5] + struct.pack(">H", len(data) - 7 & 0xFFFF) + data[7:]


TARGETS = (
    Target("ha-records", _log, _read_log, (RecordReader.feed,), (StoredDataDamaged,)),
    Target("ha-whole-records", _files, _copy_files, (WholeRecords.feed,), (StoredDataDamaged,)),
    Target("ha-transfers", _transfers, _read_transfers, (TransferReader.feed,), (HaRefused,)),
    Target("ha-reports", _reports, _read_reports, (ReportReader.feed, SlaveProgress.report), (HaRefused,)),
    Target(
        "ha-handshake",
        _handshake,
        _read_handshake,
        (decode, HandshakeReader.feed, HandshakeReader.next),
        (HaRefused,),
        with_size,
    ),
)
