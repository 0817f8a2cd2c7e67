"""Whose directory this is: written once by `init_directory`, checked at every start (rule 11)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

from dledger.core.values import FlushMode, HardState
from dledger.errors import Code, ConfigError, StorageError
from dledger.store.disk import Disk, OsDisk, make_directories, read_file, replace_file
from dledger.store.format.layout import (
    DATA,
    DEFAULT_DATA_FILE_SIZE,
    HARD_STATE,
    IDENTITY,
    INDEX,
    MIN_DATA_FILE_SIZE,
    NOTICE,
    NOTICE_TEXT,
    NodePaths,
)
from dledger.store.state_files import write_hard_state

#: 2: made by a version that compares lists of members. 1 is read, too: see `Identity.compares_members`.
FORMAT_VERSION = 2
_READABLE = (1, FORMAT_VERSION)
#: What grows with it by 2**32 must stay far below 2**63.
MAX_FIRST_INCARNATION = 1 << 30


@dataclass(frozen=True, slots=True)
class Identity:
    """What a directory was made for. All but node_id is the same on all nodes of a cluster."""

    cluster_id: str
    group: str
    node_id: str
    data_file_size: int = DEFAULT_DATA_FILE_SIZE  # bytes
    flush_mode: FlushMode = FlushMode.SYNC_FLUSH
    format_version: int = FORMAT_VERSION
    #: Ids of all members, sorted: majorities are counted among them. None: the first start adopts those of
    #: its configuration.
    members: tuple[str, ...] | None = None

    @property
    def compares_members(self) -> bool:
        """Whether all nodes of the cluster can be expected to send their list of members: not so where the
        directory was made by a version that did not, as other nodes may still run it."""
        return self.format_version > 1

    def __post_init__(self) -> None:
        for name in ("cluster_id", "group", "node_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or not value.isprintable() or "\\" in value:
                raise ConfigError(
                    f"{name} must be a printable, non-empty text without backslashes: {value!r}"
                )
        size = self.data_file_size
        if not isinstance(size, int) or not MIN_DATA_FILE_SIZE <= size < 1 << 31:
            raise ConfigError(f"data_file_size must be {MIN_DATA_FILE_SIZE}..{(1 << 31) - 1} bytes: {size!r}")
        members = self.members
        if members is not None and (self.node_id not in members or members != member_list(members)):
            raise ConfigError(f"members must be sorted ids, {self.node_id!r} one of them: {members!r}")


def member_list(node_ids: Iterable[str]) -> tuple[str, ...]:
    """Ids of members as an identity holds them: two lists that differ are two different clusters."""
    return tuple(sorted(set(node_ids)))


def first_incarnation() -> int:
    """For a new directory. At random: a node whose directory was lost must not repeat an incarnation that
    the others still know, or they would take it for the one that had the log."""
    return int.from_bytes(os.urandom(4)) & (MAX_FIRST_INCARNATION - 1)


def init_directory(
    directory: Path | str,
    identity: Identity,
    *,
    disk: Disk | None = None,
    incarnation: int = 0,
    rejoining: bool = False,
) -> None:
    """Make an empty or absent directory that of a new node; `rejoining`: of one that lost its own.

    StorageError ALREADY_INITIALIZED if there is anything in it, except for the remains of an init that a
    crash had cut short. The identity is written last: without it the directory counts as not initialised.
    """
    disk = disk or OsDisk()
    paths = NodePaths(Path(directory))
    try:
        _make_durable_directories(disk, paths.root)
        _require_empty(disk, paths, rejoining=rejoining)
        for path in (paths.data, paths.index_files):
            if not disk.exists(path):
                disk.mkdir(path)
        replace_file(disk, paths.notice, NOTICE_TEXT.encode())
        write_hard_state(disk, paths.hard_state, HardState(0, None, incarnation, rejoining))
        replace_file(disk, paths.identity, _encode(identity))
    except OSError as error:
        raise StorageError(f"cannot initialise {paths.root}: {error}") from error


def load_identity(
    directory: Path | str,
    *,
    disk: Disk | None = None,
    cluster_id: str | None = None,
    group: str | None = None,
    node_id: str | None = None,
) -> Identity:
    """The identity of a directory, checked against what is expected of it, as far as given.

    StorageError NOT_INITIALIZED if there is none, FOREIGN_DIRECTORY if it is another's or of a format that
    this version does not know, STATE_DAMAGED if it cannot be read.
    """
    disk = disk or OsDisk()
    path = NodePaths(Path(directory)).identity
    try:
        content = read_file(disk, path)
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(
            f"{directory} is no initialised node directory: run init first, or rejoin if it was lost",
            code=Code.NOT_INITIALIZED,
        ) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    identity = _decode(path, content)
    for name, expected in (("cluster_id", cluster_id), ("group", group), ("node_id", node_id)):
        found = getattr(identity, name)
        if expected is not None and found != expected:
            raise StorageError(
                f"{directory} belongs to {name} {found!r}, not {expected!r}", code=Code.FOREIGN_DIRECTORY
            )
    return identity


def settle_members(
    disk: Disk, paths: NodePaths, identity: Identity, members: tuple[str, ...], hard_state: HardState
) -> Identity:
    """The identity with the list of members that a start brings. Call it with the directory locked.

    A list is adopted where there is none, or while the node has taken part in nothing: in term 0 it has
    neither voted nor stored an entry, so no majority can have counted it. ConfigError MEMBERS_DIFFER if the
    list is another than that of the directory: two lists have majorities without a common node.
    """
    if identity.members == members:
        return identity
    if identity.members is not None and hard_state.term > 0:
        raise ConfigError(
            f"{paths.root} belongs to a cluster of the members {', '.join(identity.members)}; the "
            f"configuration names {', '.join(members)}. Members cannot be changed (addresses can): name the "
            "first ones again, on all nodes alike",
            code=Code.MEMBERS_DIFFER,
        )
    identity = replace(identity, members=members)
    replace_file(disk, paths.identity, _encode(identity))
    return identity


def _make_durable_directories(disk: Disk, path: Path) -> None:
    """The directory and its parents, each name durable, also if an earlier attempt had only created it."""
    missing = [above for above in path.parents if not disk.exists(above)]
    make_directories(disk, path)
    for parent in {made.parent for made in (*missing, path)}:
        disk.sync_directory(parent)


def _require_empty(disk: Disk, paths: NodePaths, *, rejoining: bool) -> None:
    remains = {DATA, INDEX, NOTICE, HARD_STATE} | {f"{name}.tmp" for name in (NOTICE, HARD_STATE, IDENTITY)}
    found = set(disk.listdir(paths.root))
    files = [p for p in (paths.data, paths.index_files) if p.name in found]
    known = _is_memory(disk, paths, found, rejoining=rejoining)
    if found - remains or any(disk.listdir(path) for path in files) or known:
        raise StorageError(f"{paths.root} is not empty", code=Code.ALREADY_INITIALIZED)


def _is_memory(disk: Disk, paths: NodePaths, found: set[str], *, rejoining: bool) -> bool:
    """A currterm that is not the one of an unfinished init is some node's memory, not to be overwritten: it
    may have voted, or must not before it has rejoined."""
    if HARD_STATE not in found:
        return False
    content = read_file(disk, paths.hard_state)
    return b"currTerm=0\n" not in content or (b"rejoining=1\n" in content and not rejoining)


def _encode(identity: Identity) -> bytes:
    fields: dict[str, Any] = asdict(identity) | {"flush_mode": identity.flush_mode.value}
    fields["crc"] = f"{_crc(fields):08x}"
    return (json.dumps(fields, indent=2) + "\n").encode()


def _crc(fields: dict[str, Any]) -> int:
    return crc32(json.dumps(fields, sort_keys=True).encode())


def _decode(path: Path, content: bytes) -> Identity:
    try:
        fields = json.loads(content)
        stored = int(fields.pop("crc"), 16)
        if stored != _crc(fields):
            raise ValueError("its crc does not match")
        if fields["format_version"] not in _READABLE:
            raise StorageError(
                f"{path} has format version {fields['format_version']}; this version reads {_READABLE}",
                code=Code.FOREIGN_DIRECTORY,
            )
        if (members := fields.get("members")) is not None:
            fields["members"] = tuple(members)
        return Identity(**fields | {"flush_mode": FlushMode(fields["flush_mode"])})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError) as error:
        raise StorageError(f"{path} is damaged: {error}", code=Code.STATE_DAMAGED) from error
