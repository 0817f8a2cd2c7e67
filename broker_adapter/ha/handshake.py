"""The handshake of a master and a slave that are both ours, byte by byte. Pure.

    slave to master     8    -1, where RocketMQ has the first report
    master to slave          CHALLENGE      version, nonce
    slave to master          INTRODUCTION   nonce, who it is, what its log has, its end's digest, proof
    master to slave          WELCOME        who it is, what its log has, from where on it sends, proof
                        or   REFUSAL        the number of an error, and its text

then reports and transfers as in `broker_adapter.ha.transfers`. Each of the four is

    0    4    "DLHA"
    4    1    kind
    5    2    how many bytes follow
    7    n    its fields; texts with 2 bytes for their size

A proof is HMAC-SHA256 of both nonces, the kind and all other fields with the cluster's secret: neither end
learns the secret from the other, and nothing can be said again later. Empty: that end has no secret.
What follows the handshake is not signed: TLS does that.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import Final, NamedTuple

from broker_adapter.classic.commit_log import MAX_BODY_BYTES
from broker_adapter.errors import BrokerError, HaRefused, Status, error_for
from broker_adapter.format.message import max_record_size

#: The report that asks for it.
PROBE: Final = -1
VERSION: Final = 1
NONCE_BYTES: Final = 32
DIGEST_BYTES: Final = 32
#: Of the end of a slave's log, so many bytes are compared, or all from the head of its last record on.
TAIL_BYTES: Final = 64 << 10
#: That record, and a blank behind it.
MOST_TAIL_BYTES: Final = 2 * max_record_size(MAX_BODY_BYTES) + 8
_MAGIC: Final = b"DLHA"
_HEAD = struct.Struct(">4sBH")
_MOST_BYTES: Final = 4096
_MOST_TEXT: Final = 512
_TEXT_SIZE = struct.Struct(">H")


class Kind(IntEnum):
    CHALLENGE = 1
    INTRODUCTION = 2
    WELCOME = 3
    REFUSAL = 4


class HaIdentity(NamedTuple):
    """Who an end is. A master has the id 0, slaves have others."""

    cluster: str
    broker_name: str
    broker_id: int


class LogRange(NamedTuple):
    """What a log has: from `begin` to `end`, in files of `file_size` bytes."""

    begin: int
    end: int
    file_size: int


class Challenge(NamedTuple):
    version: int
    nonce: bytes


class Introduction(NamedTuple):
    """`tail_digest`: of the log from `tail_begin` to its end. `whole_log`: a slave that has nothing wants all
    that the master has, not its last file only."""

    nonce: bytes
    identity: HaIdentity
    log: LogRange
    tail_begin: int
    tail_digest: bytes
    whole_log: bool
    proof: bytes = b""


class Welcome(NamedTuple):
    """`start`: the physical offset of the first byte that follows."""

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
    return _frame(Kind.CHALLENGE, _CHALLENGE.pack(*challenge))


def encode_introduction(said: Introduction) -> bytes:
    return _frame(Kind.INTRODUCTION, _introduction_fields(said) + _text(said.proof))


def encode_welcome(said: Welcome) -> bytes:
    return _frame(Kind.WELCOME, _welcome_fields(said) + _text(said.proof))


def encode_refusal(refusal: Refusal) -> bytes:
    text = refusal.text.encode()[:_MOST_TEXT].decode(errors="ignore").encode()
    return _frame(Kind.REFUSAL, _REFUSAL.pack(refusal.status) + _text(text))


def to_prove_introduction(challenge: Challenge, said: Introduction) -> bytes:
    """What the slave's proof is of."""
    return bytes((Kind.INTRODUCTION,)) + challenge.nonce + _introduction_fields(said)


def to_prove_welcome(challenge: Challenge, introduction: Introduction, said: Welcome) -> bytes:
    """What the master's proof is of."""
    return bytes((Kind.WELCOME,)) + challenge.nonce + introduction.nonce + _welcome_fields(said)


def tail_digest(tail: bytes) -> bytes:
    return hashlib.sha256(tail).digest()


def tail_begin(log: LogRange, last_record: int) -> int:
    """From where on a slave's log is compared with its master's. `last_record`: where the last one begins,
    whose head has its time and its place: without that, two logs may end with the same body, or blank. -1:
    unknown."""
    begin = max(log.begin, log.end - TAIL_BYTES)
    return min(begin, last_record) if last_record >= log.begin else begin


def first_acked(log: LogRange, start: int) -> int:
    """What a slave with this log has acknowledged when its master begins at `start`."""
    return log.end if log.end == start else 0


class HandshakeReader:
    """The frames of the handshake out of a stream. Holds one that is not complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Challenge | Introduction | Welcome | Refusal | None:
        """None: more has to come. HaRefused (HA_HANDSHAKE_MISSING) for what is no frame of it."""
        if len(self._buffer) < _HEAD.size:
            if not _MAGIC.startswith(self._buffer[: len(_MAGIC)]):
                raise _refused("these are no bytes of a handshake")
            return None
        magic, kind, size = _HEAD.unpack_from(self._buffer)
        if magic != _MAGIC or size > _MOST_BYTES:
            raise _refused(f"no frame of a handshake: {bytes(self._buffer[: _HEAD.size]).hex()}")
        end = _HEAD.size + size
        if len(self._buffer) < end:
            return None
        fields = bytes(self._buffer[_HEAD.size : end])
        del self._buffer[:end]
        return decode(kind, fields)

    def rest(self) -> bytes:
        """What came behind the frames that were read."""
        return bytes(self._buffer)


def decode(kind: int, fields: bytes) -> Challenge | Introduction | Welcome | Refusal:
    """The fields of a frame. HaRefused (HA_HANDSHAKE_MISSING)."""
    try:
        match kind:
            case Kind.CHALLENGE:
                return Challenge(*_CHALLENGE.unpack(fields))
            case Kind.INTRODUCTION:
                return _introduction(fields)
            case Kind.WELCOME:
                return _welcome(fields)
            case Kind.REFUSAL:
                (status,) = _REFUSAL.unpack_from(fields)
                (text,) = _texts(fields, _REFUSAL.size, 1)
                return Refusal(status, text.decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise _refused(f"a frame of a handshake: {error}") from None
    raise _refused(f"no frame of a handshake has kind {kind}")


def error_of(refusal: Refusal) -> BrokerError:
    """As the master has it, if its number is one of those of HA."""
    try:
        error = error_for(Status(refusal.status), f"the master refuses: {refusal.text}")
    except ValueError:
        error = None
    if not isinstance(error, HaRefused):
        return HaRefused(Status.HA_IDENTITY, f"the master refuses: {refusal.status}: {refusal.text}")
    return error


def _introduction_fields(said: Introduction) -> bytes:
    fixed = _INTRODUCTION.pack(
        said.nonce,
        said.identity.broker_id,
        *said.log,
        said.tail_begin,
        said.tail_digest,
        said.whole_log,
    )
    return fixed + _text(said.identity.cluster.encode()) + _text(said.identity.broker_name.encode())


def _introduction(fields: bytes) -> Introduction:
    nonce, broker_id, begin, end, file_size, tail, digest, whole_log = _INTRODUCTION.unpack_from(fields)
    if whole_log > 1:  # proofs are of what is encoded again
        raise _refused(f"a flag of a handshake is {whole_log}")
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


def _welcome_fields(said: Welcome) -> bytes:
    fixed = _WELCOME.pack(said.identity.broker_id, *said.log, said.start)
    return fixed + _text(said.identity.cluster.encode()) + _text(said.identity.broker_name.encode())


def _welcome(fields: bytes) -> Welcome:
    broker_id, begin, end, file_size, start = _WELCOME.unpack_from(fields)
    cluster, name, proof = _texts(fields, _WELCOME.size, 3)
    return Welcome(
        HaIdentity(cluster.decode(), name.decode(), broker_id), _range(begin, end, file_size), start, proof
    )


def _range(begin: int, end: int, file_size: int) -> LogRange:
    if not (0 <= begin <= end and file_size > 0):
        raise _refused(f"a log from {begin} to {end} in files of {file_size} bytes")
    return LogRange(begin, end, file_size)


def _frame(kind: Kind, fields: bytes) -> bytes:
    assert len(fields) <= _MOST_BYTES, "a frame of the handshake is too large"
    return _HEAD.pack(_MAGIC, kind, len(fields)) + fields


def _text(text: bytes) -> bytes:
    assert len(text) <= _MOST_TEXT, "a text of the handshake is too long"
    return _TEXT_SIZE.pack(len(text)) + text


def _texts(fields: bytes, at: int, count: int) -> list[bytes]:
    """All that follows `at`."""
    found = []
    for _ in range(count):
        (size,) = _TEXT_SIZE.unpack_from(fields, at)
        at += _TEXT_SIZE.size
        if size > _MOST_TEXT or at + size > len(fields):
            raise _refused(f"a text of {size} bytes in a frame of a handshake of {len(fields)}")
        found.append(fields[at : at + size])
        at += size
    if at != len(fields):
        raise _refused(f"{len(fields) - at} bytes too many in a frame of a handshake")
    return found


def _refused(problem: str) -> HaRefused:
    return HaRefused(Status.HA_HANDSHAKE_MISSING, problem)
