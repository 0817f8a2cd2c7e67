"""The small files next to the log: term and vote, checkpoint, base, session table.

`currterm` and `checkpoint` keep DLedger's keys, so that its tools can read them, and add further keys. Each
file is replaced atomically and durably. Only `currterm` is irreplaceable.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from zlib_ng.zlib_ng import crc32

from dledger.core.membership_json import decode_membership, encode_membership
from dledger.core.values import Base, HardState, MembershipAt, Tail, TermRun
from dledger.errors import Code, StorageError
from dledger.infra.files.disk import Disk, read_file, replace_file
from dledger.store.format.properties import format_properties, is_intact, parse_properties

_HARD_STATE_KEYS = ("incarnation", "crc")
_REJOIN_KEYS = ("rejoining", "barredTerm", "floorTerm", "floorIndex")
#: Exceptions from parsing a file with a valid checksum but unexpected content, for example from another
#: version.
NOT_AS_WRITTEN = (KeyError, ValueError, TypeError, IndexError)
_SESSIONS = struct.Struct(">4sqII")
_SESSIONS_MAGIC = b"DLS1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The log is durable and durably indexed up to `tail`. Recovery starts there."""

    tail: Tail
    committed_index: int
    base: Base
    term_runs: tuple[TermRun, ...]


@dataclass(frozen=True, slots=True)
class StoredBase:
    """The second copy of the base. `resetting`: the whole log is being removed."""

    base: Base
    resetting: bool = False


def tail_of(base: Base) -> Tail:
    """Return the end of an empty log that starts after `base`."""
    return Tail(base.index, base.term, base.pos, base.chain_crc)


def write_hard_state(disk: Disk, path: Path, state: HardState) -> int:
    """Store term and vote durably, and return the size of the file. After an OSError the stored vote is
    unknown."""
    assert state.term >= 0 and state.incarnation >= 0, state
    values: dict[str, str | int] = {
        "currTerm": state.term,
        "voteLeader": state.voted_for or "",
        "incarnation": state.incarnation,
    }
    rejoin = (int(state.rejoining), state.barred_term, state.floor_term, state.floor_index)
    if rejoin != (0, -1, -1, -1):
        values.update(zip(_REJOIN_KEYS, rejoin, strict=True))
    if state.directories:
        values["directories"] = ",".join(f"{quote(node_id, '')}:{n}" for node_id, n in state.directories)
    if state.memberships:
        values["memberships"] = " ".join(
            f"{at.index}:{at.term}:{quote(encode_membership(at.membership), '')}" for at in state.memberships
        )
    if state.uid:
        values["uid"] = state.uid
    content = format_properties(values)
    replace_file(disk, path, content)
    return len(content)


def read_hard_state(disk: Disk, path: Path) -> HardState:
    """Read term and vote. Raises StorageError FOREIGN_DIRECTORY if original DLedger wrote the file,
    STATE_DAMAGED if it is missing or invalid."""
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        raise StorageError(
            f"{path} is missing: without the recorded vote the node could vote twice; start it with --rejoin",
            code=Code.STATE_DAMAGED,
        ) from None
    values = parse_properties(content)
    if "currTerm" in values and not any(key in values for key in _HARD_STATE_KEYS):
        raise StorageError(
            f"{path} was written by an original DLedger; this program does not open its directories",
            code=Code.FOREIGN_DIRECTORY,
        )
    try:
        if not is_intact(content):
            raise ValueError("its crc does not match")
        rejoining, barred_term, floor_term, floor_index = (
            int(values.get(key, default)) for key, default in zip(_REJOIN_KEYS, (0, -1, -1, -1), strict=True)
        )
        pairs = (item.split(":") for item in values.get("directories", "").split(",") if item)
        return HardState(
            int(values["currTerm"]),
            values["voteLeader"] or None,
            int(values["incarnation"]),
            bool(rejoining),
            barred_term,
            floor_term,
            floor_index,
            tuple((unquote(node_id), int(number)) for node_id, number in pairs),
            tuple(_parse_membership(item) for item in values.get("memberships", "").split()),
            int(values.get("uid", 0)),
        )
    except (ValueError, KeyError) as error:
        raise StorageError(f"{path} is damaged: {error}", code=Code.STATE_DAMAGED) from error


def _parse_membership(item: str) -> MembershipAt:
    index, term, text = item.split(":")
    membership = decode_membership(unquote(text).encode())
    if membership is None:
        raise ValueError("its configuration cannot be read")
    return MembershipAt(int(index), int(term), membership)


def write_checkpoint(disk: Disk, path: Path, checkpoint: Checkpoint) -> None:
    """Store the checkpoint durably."""
    tail, base = checkpoint.tail, checkpoint.base
    assert base.index <= tail.index and checkpoint.committed_index <= tail.index, checkpoint
    values: dict[str, str | int] = {
        "endIndex": tail.index,
        "committedIndex": checkpoint.committed_index,
        "endTerm": tail.term,
        "endPos": tail.pos,
        "endChainCrc": tail.chain_crc,
        "beginIndex": base.index + 1,
        "baseTerm": base.term,
        "basePos": base.pos,
        "baseChainCrc": base.chain_crc,
        "termRuns": ",".join(f"{run.term}:{run.first_index}" for run in checkpoint.term_runs),
    }
    replace_file(disk, path, format_properties(values))


def read_checkpoint(disk: Disk, path: Path) -> Checkpoint | None:
    """Read the checkpoint. Returns None if it is missing or invalid, because the log contains the same
    information. Raises StorageError FOREIGN_DIRECTORY if original DLedger wrote the file."""
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return None
    values = parse_properties(content)
    if set(values) == {"endIndex", "committedIndex"}:
        raise StorageError(
            f"{path} was written by an original DLedger; this program does not open its directories",
            code=Code.FOREIGN_DIRECTORY,
        )
    if not is_intact(content):
        return None
    try:
        number = {key: int(value) for key, value in values.items() if key not in ("termRuns", "crc")}
        return Checkpoint(
            Tail(number["endIndex"], number["endTerm"], number["endPos"], number["endChainCrc"]),
            number["committedIndex"],
            Base(number["beginIndex"] - 1, number["baseTerm"], number["basePos"], number["baseChainCrc"]),
            tuple(TermRun(*map(int, run.split(":"))) for run in values["termRuns"].split(",") if run),
        )
    except NOT_AS_WRITTEN:
        return None


def write_base(disk: Disk, path: Path, stored: StoredBase) -> None:
    """Store the base durably."""
    base = stored.base
    values: dict[str, str | int] = {
        "baseIndex": base.index,
        "baseTerm": base.term,
        "basePos": base.pos,
        "baseChainCrc": base.chain_crc,
        "resetting": int(stored.resetting),
    }
    replace_file(disk, path, format_properties(values))


def read_base(disk: Disk, path: Path) -> StoredBase | None:
    """Read the base. Returns None if it is missing or invalid, because the checkpoint also contains it."""
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return None
    if not is_intact(content):
        return None
    values = parse_properties(content)
    try:
        base = Base(*(int(values[key]) for key in ("baseIndex", "baseTerm", "basePos", "baseChainCrc")))
        return StoredBase(base, values["resetting"] == "1")
    except NOT_AS_WRITTEN:
        return None


def write_sessions(disk: Disk, path: Path, index: int, blob: bytes) -> None:
    """Store the session table durably."""
    crc = crc32(blob, crc32(_SESSIONS.pack(_SESSIONS_MAGIC, index, len(blob), 0)))
    replace_file(disk, path, _SESSIONS.pack(_SESSIONS_MAGIC, index, len(blob), crc) + blob)


def read_sessions(disk: Disk, path: Path) -> tuple[int, bytes] | None:
    """Return the session table and the index that it covers. Returns None if it is missing or invalid,
    because the log contains the same information."""
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return None
    if len(content) < _SESSIONS.size:
        return None
    magic, index, size, crc = _SESSIONS.unpack_from(content)
    blob = content[_SESSIONS.size :]
    if magic != _SESSIONS_MAGIC or size != len(blob):
        return None
    if crc32(blob, crc32(_SESSIONS.pack(magic, index, size, 0))) != crc:
        return None
    return index, blob
