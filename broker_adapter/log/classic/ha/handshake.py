"""Handshake between master and slave of this project: encoding and decoding. Pure functions.

    slave to master     8    -1, in place of RocketMQ's first report
    master to slave          CHALLENGE      version, nonce
    slave to master          INTRODUCTION   nonce, identity, log range, digest of the log's tail, proof
    master to slave          WELCOME        identity, log range, start of the transfer, proof
                        or   REFUSAL        error number and text

followed by reports and transfers as in `broker_adapter.log.classic.ha.transfers`. Frame format:

    0    4    "DLHA"
    4    1    kind
    5    2    size of the fields
    7    n    fields; strings have a 2-byte length

A proof is the HMAC-SHA256 of both nonces, the kind and all other fields, keyed with the cluster secret. It
does not disclose the secret, and frames cannot be replayed. A proof is empty if the sender has no secret.

Data after the handshake is not signed; use TLS to protect it.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import Final, NamedTuple

from broker_adapter.errors import BrokerError, HaRefused, Status, error_for
from broker_adapter.log.classic.commit_log import MAX_BODY_BYTES
from broker_adapter.wire.message import max_record_size

# Report that requests the handshake.
PROBE: Final = -1
VERSION: Final = 1
NONCE_BYTES: Final = 32
DIGEST_BYTES: Final = 32
# Minimum size of the compared tail of a slave's log. The tail always includes the head of the last record.
TAIL_BYTES: Final = 64 << 10
# Maximum size of that tail: the last record and a blank after it.
MOST_TAIL_BYTES: Final = 2 * max_record_size(MAX_BODY_BYTES) + 8
_MAGIC: Final = b"DLHA"
_HEAD = struct.Struct(">4sBH")
_MOST_BYTES: Final = 4096
_MOST_TEXT: Final = 512
_TEXT_SIZE = struct.Struct(">H")


class HandshakeFrame(IntEnum):
    CHALLENGE = 1
    INTRODUCTION = 2
    WELCOME = 3
    REFUSAL = 4


class HaIdentity(NamedTuple):
    """Identity of a broker in the handshake. A master has id 0; slaves have other ids."""

    cluster: str
    broker_name: str
    broker_id: int


class LogRange(NamedTuple):
    """Physical offsets of a log's start and end, and the size of its files in bytes."""

    begin: int
    end: int
    file_size: int


class Challenge(NamedTuple):
    version: int
    nonce: bytes


class Introduction(NamedTuple):
    """Introduction of a slave.

    `tail_digest` covers its log from `tail_begin` to the end. `whole_log`: an empty slave requests the
    master's whole log instead of only the last file.
    """

    nonce: bytes
    identity: HaIdentity
    log: LogRange
    tail_begin: int
    tail_digest: bytes
    whole_log: bool
    proof: bytes = b""


class Welcome(NamedTuple):
    """Reply to a slave. `start`: physical offset of the first transferred byte."""

    identity: HaIdentity
    log: LogRange
    start: int
    proof: bytes = b""


class Refusal(NamedTuple):
    status: int
    text: str


_CHALLENGE = struct.Struct(f">B{NONCE_BYTES}s")
_INTRODUCTION = struct.Struct(f">{NONCE_BYTES}sqqqqq{DIGEST_BYTES}sB")
_WELCOME = struct.Struct(">qqqqq")
_REFUSAL = struct.Struct(">I")


def encode_challenge(challenge: Challenge) -> bytes:
    return _frame(HandshakeFrame.CHALLENGE, _CHALLENGE.pack(*challenge))


def encode_introduction(introduction: Introduction) -> bytes:
    return _frame(HandshakeFrame.INTRODUCTION, _introduction_fields(introduction) + _text(introduction.proof))


def encode_welcome(welcome: Welcome) -> bytes:
    return _frame(HandshakeFrame.WELCOME, _welcome_fields(welcome) + _text(welcome.proof))


def encode_refusal(refusal: Refusal) -> bytes:
    text = refusal.text.encode()[:_MOST_TEXT].decode(errors="ignore").encode()
    return _frame(HandshakeFrame.REFUSAL, _REFUSAL.pack(refusal.status) + _text(text))


def to_prove_introduction(challenge: Challenge, introduction: Introduction) -> bytes:
    """Return the bytes that the slave's proof covers."""
    return bytes((HandshakeFrame.INTRODUCTION,)) + challenge.nonce + _introduction_fields(introduction)


def to_prove_welcome(challenge: Challenge, introduction: Introduction, welcome: Welcome) -> bytes:
    """Return the bytes that the master's proof covers."""
    return bytes((HandshakeFrame.WELCOME,)) + challenge.nonce + introduction.nonce + _welcome_fields(welcome)


def tail_digest(tail: bytes) -> bytes:
    return hashlib.sha256(tail).digest()


def tail_begin(log: LogRange, last_record: int) -> int:
    """Return the start of the part of a slave's log that is compared with the master's log.

    The part includes the whole last record, which starts at `last_record` (-1: unknown). The head of the
    record contains its timestamp and position. Without the head, different logs could end with the same body
    or blank.
    """
    begin = max(log.begin, log.end - TAIL_BYTES)
    return min(begin, last_record) if last_record >= log.begin else begin


def first_acked(log: LogRange, start: int) -> int:
    """Return the offset that a slave with this log has acknowledged if its transfer starts at `start`."""
    return log.end if log.end == start else 0


class HandshakeReader:
    """Reads frames of the handshake from a stream. Buffers one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Challenge | Introduction | Welcome | Refusal | None:
        """Return the next frame, or None if it is incomplete.

        Raises HaRefused (HA_HANDSHAKE_MISSING) if the data is not a frame.
        """
        if len(self._buffer) < _HEAD.size:
            if not _MAGIC.startswith(self._buffer[: len(_MAGIC)]):
                raise _refused("the data is not a handshake")
            return None
        magic, kind, size = _HEAD.unpack_from(self._buffer)
        if magic != _MAGIC or size > _MOST_BYTES:
            raise _refused(f"the data is not a handshake frame: {bytes(self._buffer[: _HEAD.size]).hex()}")
        end = _HEAD.size + size
        if len(self._buffer) < end:
            return None
        fields = bytes(self._buffer[_HEAD.size : end])
        del self._buffer[:end]
        return decode(kind, fields)

    def rest(self) -> bytes:
        """Return the buffered data that follows the last returned frame."""
        return bytes(self._buffer)


def decode(kind: int, fields: bytes) -> Challenge | Introduction | Welcome | Refusal:
    """Decode the fields of a frame. Raises HaRefused (HA_HANDSHAKE_MISSING)."""
    try:
        match kind:
            case HandshakeFrame.CHALLENGE:
                return Challenge(*_CHALLENGE.unpack(fields))
            case HandshakeFrame.INTRODUCTION:
                return _introduction(fields)
            case HandshakeFrame.WELCOME:
                return _welcome(fields)
            case HandshakeFrame.REFUSAL:
                (status,) = _REFUSAL.unpack_from(fields)
                (text,) = _texts(fields, _REFUSAL.size, 1)
                return Refusal(status, text.decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise _refused(f"invalid handshake frame: {error}") from None
    raise _refused(f"unknown handshake frame kind {kind}")


def error_of(refusal: Refusal) -> BrokerError:
    """Convert a refusal to the error that the master named, or to HA_IDENTITY if no HA error has the number
    in the refusal.
    """
    try:
        error = error_for(Status(refusal.status), f"the master refuses: {refusal.text}")
    except ValueError:
        error = None
    if not isinstance(error, HaRefused):
        return HaRefused(Status.HA_IDENTITY, f"the master refuses: {refusal.status}: {refusal.text}")
    return error


def _introduction_fields(introduction: Introduction) -> bytes:
    fixed = _INTRODUCTION.pack(
        introduction.nonce,
        introduction.identity.broker_id,
        *introduction.log,
        introduction.tail_begin,
        introduction.tail_digest,
        introduction.whole_log,
    )
    return fixed + _identity_texts(introduction.identity)


def _introduction(fields: bytes) -> Introduction:
    nonce, broker_id, begin, end, file_size, tail, digest, whole_log = _INTRODUCTION.unpack_from(fields)
    if whole_log > 1:  # proofs cover the encoded fields
        raise _refused(f"invalid whole_log flag {whole_log} in a handshake frame")
    cluster, name, proof = _texts(fields, _INTRODUCTION.size, 3)
    return Introduction(
        nonce,
        HaIdentity(cluster.decode(), name.decode(), broker_id),
        _range(begin, end, file_size),
        tail,
        digest,
        whole_log == 1,
        proof,
    )


def _welcome_fields(welcome: Welcome) -> bytes:
    fixed = _WELCOME.pack(welcome.identity.broker_id, *welcome.log, welcome.start)
    return fixed + _identity_texts(welcome.identity)


def _welcome(fields: bytes) -> Welcome:
    broker_id, begin, end, file_size, start = _WELCOME.unpack_from(fields)
    cluster, name, proof = _texts(fields, _WELCOME.size, 3)
    return Welcome(
        HaIdentity(cluster.decode(), name.decode(), broker_id), _range(begin, end, file_size), start, proof
    )


def _identity_texts(identity: HaIdentity) -> bytes:
    return _text(identity.cluster.encode()) + _text(identity.broker_name.encode())


def _range(begin: int, end: int, file_size: int) -> LogRange:
    if not (0 <= begin <= end and file_size > 0):
        raise _refused(f"invalid log range {begin} to {end} in files of {file_size} bytes")
    return LogRange(begin, end, file_size)


def _frame(kind: HandshakeFrame, fields: bytes) -> bytes:
    assert len(fields) <= _MOST_BYTES, "handshake frame is too large"
    return _HEAD.pack(_MAGIC, kind, len(fields)) + fields


def _text(text: bytes) -> bytes:
    assert len(text) <= _MOST_TEXT, "handshake string is too long"
    return _TEXT_SIZE.pack(len(text)) + text


def _texts(fields: bytes, at: int, count: int) -> list[bytes]:
    """Parse `count` strings. They must fill the rest of the fields."""
    found = []
    for _ in range(count):
        (size,) = _TEXT_SIZE.unpack_from(fields, at)
        at += _TEXT_SIZE.size
        if size > _MOST_TEXT or at + size > len(fields):
            raise _refused(f"a string of {size} bytes does not fit in a handshake frame of {len(fields)}")
        found.append(fields[at : at + size])
        at += size
    if at != len(fields):
        raise _refused(f"{len(fields) - at} extra bytes in a handshake frame")
    return found


def _refused(problem: str) -> HaRefused:
    return HaRefused(Status.HA_HANDSHAKE_MISSING, problem)
