"""Identity of a node directory: written once by `init_directory`, checked at every start (rule 11)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

from dledger.core.membership_change import MAX_NAME, is_node_id
from dledger.core.values import UNKNOWN_UID, FlushMode, HardState
from dledger.errors import Code, ConfigError, StorageError
from dledger.infra.files.disk import Disk, OsDisk, make_directories, read_file, replace_file
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

#: Format 2 includes the list of members. Format 1 is still readable.
FORMAT_VERSION = 2
#: A release before 0.3 must not use the directory: the members of the group have changed, and it would count
#: those of the list, or there are state images in files, and it would look for them in the log.
CHANGED_FORMAT = 3
#: Like CHANGED_FORMAT, with the number of forced recoveries (dledger.store.offline.recover).
RECOVERED_FORMAT = 4
_READABLE = (1, FORMAT_VERSION, CHANGED_FORMAT, RECOVERED_FORMAT)
#: Upper bound of a random first incarnation. Values that grow from it by 2**32 must stay far below 2**63.
MAX_FIRST_INCARNATION = 1 << 30


@dataclass(frozen=True, slots=True)
class Identity:
    """The node and cluster that a directory belongs to. Nodes of a cluster differ in node_id only."""

    cluster_id: str
    group: str
    node_id: str
    data_file_size: int = DEFAULT_DATA_FILE_SIZE  # bytes
    flush_mode: FlushMode = FlushMode.SYNC_FLUSH
    format_version: int = FORMAT_VERSION
    #: Ids of the first members of the group, sorted. None: the first start adopts the members of its
    #: configuration.
    members: tuple[str, ...] | None = None
    recovery: int = 0  # how many forced recoveries the log had when this node became its only member
    #: Id of the cluster before that recovery, while the recovery is unfinished. The directory then still has
    #: its list of first members.
    former_id: str | None = None
    is_joined: bool = False  # the node was added later, so it has no list of first members
    is_promotion: bool = False  # with `former_id`: of a learner, whose log is cut (dledger mirror promote)

    def __post_init__(self) -> None:
        for name in ("cluster_id", "group", "node_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not is_node_id(value):
                raise ConfigError(
                    f"{name} must have 1 to {MAX_NAME} printable characters without backslashes, not "
                    f"{value!r:.300}"
                )
        size = self.data_file_size
        if not isinstance(size, int) or not MIN_DATA_FILE_SIZE <= size < 1 << 31:
            raise ConfigError(
                f"data_file_size must be {MIN_DATA_FILE_SIZE} to {(1 << 31) - 1} bytes, not {size!r}"
            )
        members = self.members
        if members is not None and (self.node_id not in members or members != member_list(members)):
            raise ConfigError(
                f"members must be a sorted list of ids that includes {self.node_id!r}, not {members!r}"
            )


def joined(identity: Identity) -> Identity:
    """Return the identity of a node that is added to a running group."""
    return replace(identity, format_version=CHANGED_FORMAT, members=None, is_joined=True)


def recovering(identity: Identity, cluster_id: str, number: int, *, is_promotion: bool = False) -> Identity:
    """Return the identity during forced recovery `number`, which gives the cluster a new id."""
    return replace(
        identity,
        cluster_id=cluster_id,
        format_version=RECOVERED_FORMAT,
        recovery=number,
        former_id=identity.cluster_id,
        is_promotion=is_promotion,
    )


def recovered(identity: Identity) -> Identity:
    """Return the identity after the forced recovery."""
    return replace(identity, members=None, former_id=None, is_joined=True, is_promotion=False)


def save_identity(disk: Disk, paths: NodePaths, identity: Identity) -> None:
    """Replace the identity durably. Call it with the directory locked."""
    replace_file(disk, paths.identity, _encode(identity))


def first_uid(identity: Identity) -> int:
    return UNKNOWN_UID if identity.is_joined else 0


def member_list(node_ids: Iterable[str]) -> tuple[str, ...]:
    """Normalize a list of members for an identity: different lists mean different clusters."""
    return tuple(sorted(set(node_ids)))


def first_incarnation() -> int:
    """Return a random first incarnation for a new directory. A node that lost its directory must not repeat
    an incarnation that its peers know, because they would mistake it for the node that had the log. It also
    becomes the number of the directory (dledger.core.directories)."""
    return int.from_bytes(os.urandom(4)) & (MAX_FIRST_INCARNATION - 1)


def init_directory(
    directory: Path | str,
    identity: Identity,
    *,
    disk: Disk | None = None,
    incarnation: int = 0,
    rejoining: bool = False,
    uid: int | None = None,
) -> None:
    """Initialize an empty or absent directory for a new node or, if `rejoining`, for a node that lost its
    directory.

    `uid`: of a member that was added and has lost its directory.

    Raises StorageError ALREADY_INITIALIZED if it contains anything but the remains of an interrupted init.
    The identity is written last, so a directory without an identity counts as not initialized.
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
        state = HardState(0, None, incarnation, rejoining, uid=first_uid(identity) if uid is None else uid)
        write_hard_state(disk, paths.hard_state, state)
        replace_file(disk, paths.identity, _encode(identity))
    except OSError as error:
        raise StorageError(f"cannot initialize {paths.root}: {error}") from error


def load_identity(
    directory: Path | str,
    *,
    disk: Disk | None = None,
    cluster_id: str | None = None,
    group: str | None = None,
    node_id: str | None = None,
    unfinished: bool = False,
) -> Identity:
    """Read the identity of a directory and compare it with the given expected values.

    `unfinished`: accept a directory whose forced recovery was interrupted.

    Raises StorageError NOT_INITIALIZED if there is none, FOREIGN_DIRECTORY if it differs or has an
    unsupported format version, RECOVERY_UNFINISHED, STATE_DAMAGED if it cannot be read.
    """
    disk = disk or OsDisk()
    path = NodePaths(Path(directory)).identity
    try:
        content = read_file(disk, path)
    except (FileNotFoundError, NotADirectoryError):
        text = (
            f"{directory} is not the directory of a node: for a new group, run `dledger init`; start a node "
            "that is added to a group with --join, and one that lost its directory with --rejoin"
        )
        raise StorageError(text, code=Code.NOT_INITIALIZED) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    identity = _decode(path, content)
    if identity.former_id is not None and not unfinished:
        what, command = "recovery", "recover --force-new-cluster"
        if identity.is_promotion:
            what, command = "promotion", "mirror promote"
        raise StorageError(
            f"the {what} of {directory} as cluster {identity.cluster_id!r} was interrupted; run "
            f"`dledger {command}` again: it continues",
            code=Code.RECOVERY_UNFINISHED,
        )
    for name, expected in (("cluster_id", cluster_id), ("group", group), ("node_id", node_id)):
        value = getattr(identity, name)
        if expected is not None and value != expected:
            text = f"{directory} belongs to {name} {value!r}, expected {expected!r}"
            if name == "cluster_id" and identity.recovery:
                text += f'; it was recovered as a new cluster: set cluster_id = "{value}" for this node'
            raise StorageError(text, code=Code.FOREIGN_DIRECTORY)
    return identity


def note_change(disk: Disk, paths: NodePaths, identity: Identity) -> Identity:
    """Mark the directory as one that release 0.2 must not use, before it stores what that does not know."""
    if identity.format_version < CHANGED_FORMAT:
        identity = replace(identity, format_version=CHANGED_FORMAT)
        save_identity(disk, paths, identity)
    return identity


def settle_members(
    disk: Disk, paths: NodePaths, identity: Identity, members: tuple[str, ...], hard_state: HardState
) -> Identity:
    """Return the identity with a list of first members. Call it with the directory locked.

    The configured list is adopted if the node is in term 0: it has neither voted nor stored an entry, so no
    majority can include it. Afterwards the directory's list is final, because majorities of two lists need
    not have a node in common. The configuration may name later members, if the node was down when they were
    added.

    A directory of format 1 has no list. It adopts the configured one, but the node does not save it before
    it takes part in anything by this list: other members refuse a wrong one.
    """
    if identity.is_joined or identity.members == members or hard_state.memberships:
        return identity  # the log knows the members, or will
    if hard_state.term > 0:
        return identity if identity.members is not None else replace(identity, members=members)
    identity = replace(identity, members=members)
    save_identity(disk, paths, identity)
    return identity


def _make_durable_directories(disk: Disk, path: Path) -> None:
    """Create the directory and its parents. Make each name durable, even if an earlier attempt created it."""
    missing = [above for above in path.parents if not disk.exists(above)]
    make_directories(disk, path)
    for parent in {made.parent for made in (*missing, path)}:
        disk.sync_directory(parent)


def _require_empty(disk: Disk, paths: NodePaths, *, rejoining: bool) -> None:
    remains = {DATA, INDEX, NOTICE, HARD_STATE} | {f"{name}.tmp" for name in (NOTICE, HARD_STATE, IDENTITY)}
    names = set(disk.listdir(paths.root))
    files = [p for p in (paths.data, paths.index_files) if p.name in names]
    known = _is_memory(disk, paths, names, rejoining=rejoining)
    if names - remains or any(disk.listdir(path) for path in files) or known:
        raise StorageError(f"{paths.root} is not empty", code=Code.ALREADY_INITIALIZED)


def _is_memory(disk: Disk, paths: NodePaths, names: set[str], *, rejoining: bool) -> bool:
    """Return True if currterm exists and was not left by an unfinished init. Such a file must not be
    overwritten, because the node may have voted, or may have to rejoin before it votes."""
    if HARD_STATE not in names:
        return False
    content = read_file(disk, paths.hard_state)
    return b"currTerm=0\n" not in content or (b"rejoining=1\n" in content and not rejoining)


def _encode(identity: Identity) -> bytes:
    fields: dict[str, Any] = asdict(identity) | {"flush_mode": identity.flush_mode.value}
    if not identity.recovery:  # earlier releases do not know these
        del fields["recovery"], fields["former_id"]
    for name in ("is_joined", "is_promotion"):
        if not fields[name]:
            del fields[name]
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
                f"{path} has format version {fields['format_version']}; this release reads {_READABLE}",
                code=Code.FOREIGN_DIRECTORY,
            )
        if (members := fields.get("members")) is not None:
            fields["members"] = tuple(members)
        return Identity(**fields | {"flush_mode": FlushMode(fields["flush_mode"])})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError) as error:
        raise StorageError(f"{path} is damaged: {error}", code=Code.STATE_DAMAGED) from error
