"""Decoders of the replicated log: entries, index records, the files beside the log, what members send."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from zlib_ng.zlib_ng import crc32

from dledger import EntryRun
from dledger.client import reader as client_reader
from dledger.core.membership_json import decode_membership, encode_membership
from dledger.core.sessions import SessionTable
from dledger.core.values import (
    EMPTY_TAIL,
    NO_RECOVERY,
    Base,
    HardState,
    Member,
    Membership,
    Recovery,
    Tail,
    TermRun,
)
from dledger.errors import InvalidRequest, StorageError
from dledger.infra.transport.handlers import parser
from dledger.infra.transport.wire import read_varint
from dledger.rpc import append_wire, convert_admin, convert_peer
from dledger.rpc.envelope import PeerIdentity
from dledger.store import damage, identity, state_files
from dledger.store.api import Damage, Frames
from dledger.store.format import batch
from dledger.store.format.batch import DamagedBatch
from dledger.store.format.internal import (
    ImageBegin,
    ImageChunk,
    ImageEnd,
    NoOp,
    Purge,
    SessionBatch,
    SessionOpen,
    StampedInternal,
    decode_internal,
    encode_internal,
)
from dledger.store.format.layout import index_records, unpack_record
from dledger.store.format.properties import is_intact, parse_properties
from dledger.store.image_files import CHUNK_BYTES, ImageManifest, ImageMark, decode_manifest
from dledger.store.offline import backup
from dledger.store.offline.manifest import MANIFEST, load_manifest
from dledger.testing.virtual.sim_disk import SimDisk
from dledger.v1 import admin_pb2 as admin
from dledger.v1 import peer_pb2 as peer
from tests.fuzz.messages import Known, filled
from tests.fuzz.target import Target
from tests.store.helpers import SIZE, make_batches

_FILE = Path("/node/file")


# -- entries


def _entries(rng: Random) -> bytes:
    """A log from its first entry on; now and then many of equal size, which are laid out side by side."""
    if rng.random() < 0.3:
        made, tail = [], EMPTY_TAIL
        for _ in range(3):
            made.append(batch.encode_batch(tail, 1, [b"x" * 20] * 40, data_file_size=1 << 20))
            tail = made[-1].tail
        return b"".join(bytes(one.data) for one in made)
    return b"".join(bytes(one.data) for one in make_batches(6, seed=rng.randrange(99), size=1 << 20))


def with_sums(data: bytes) -> bytes:
    """The sums of all entries put right, from the first on, as far as one follows the other."""
    changed, at, chain = bytearray(data), 0, 0
    while at + 48 <= len(changed):
        size = int.from_bytes(changed[at + 4 : at + 8])
        if not 48 <= size <= len(changed) - at:
            break
        changed[at + 40 : at + 44] = crc32(bytes(changed[at + 48 : at + size])).to_bytes(4)
        head = bytes(changed[at : at + 36] + changed[at + 40 : at + 48])
        chain = crc32(head + chain.to_bytes(4)) or 1
        changed[at + 36 : at + 40] = chain.to_bytes(4)
        at += size
    return bytes(changed)


def _decode_batches(data: bytes) -> None:
    for batches in (batch.parse_batches, batch.parse_batch):
        if batches is batch.parse_batch and not data:
            continue
        arguments = (data, EMPTY_TAIL) if batches is batch.parse_batches else (data, 0, EMPTY_TAIL)
        batches(*arguments, data_file_size=1 << 20)


def _run(data: bytes) -> None:
    for whole in (False, True):
        batch.verify_run(data, 0, 0, 0, 1000, whole_batches=whole)


def _internal(rng: Random) -> bytes:
    base = Base(3, 1, 500, 7)
    values = (SessionBatch(1, 2, 3, 4), ImageChunk(5, 6, b"data"), NoOp(), SessionOpen(), ImageBegin())
    value = rng.choice((*values, ImageEnd(1, 2, 3), Purge(base)))
    return encode_internal(StampedInternal(1000, value) if rng.random() < 0.5 else value)


def _unpack_record(data: bytes) -> None:
    for at in range(0, len(data) - 31, 32):
        unpack_record(data, at).is_plausible(at // 32)


# -- the files beside the log


def _read(read: Callable[..., Any]) -> Callable[[bytes], Any]:
    """With the input as the content of its file."""

    def decode(data: bytes) -> Any:
        disk = SimDisk()
        disk.mkdir(_FILE.parent)
        disk.set_content(_FILE, data)
        return read(disk, _FILE)

    return decode


def _written(write: Callable[..., None], *arguments: Any) -> bytes:
    disk = SimDisk()
    disk.mkdir(_FILE.parent)
    write(disk, _FILE, *arguments)
    return disk.content(_FILE)


def _image_manifest(rng: Random) -> bytes:
    crcs = tuple(rng.randrange(1 << 32) for _ in range(rng.randrange(4)))
    size = len(crcs) * CHUNK_BYTES
    sessions = rng.randrange(size + 1)
    mark = ImageMark(rng.randrange(1 << 40), rng.randrange(99), rng.randrange(1 << 40))
    return ImageManifest(mark, sessions, size - sessions, crcs, is_copy=rng.random() < 0.5).encode()


def with_crc_line(data: bytes) -> bytes:
    """Properties with the sum of what they say."""
    body = data.rpartition(b"crc=")[0]
    return body + b"crc=%08x\n" % crc32(body)


def with_json_crc(data: bytes) -> bytes:
    """JSON with the sum of what it says, if it is an object still."""
    try:
        fields = json.loads(data)
        sum_ = fields.pop("crc")
        crc = crc32(json.dumps(fields, sort_keys=True).encode())
        fields["crc"] = f"{crc:08x}" if isinstance(sum_, str) else crc
        return json.dumps(fields).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return data


def _hard_state(rng: Random) -> bytes:
    directories = (("n1", 3), ("n,2", 5 << 32))[: rng.randrange(3)]
    state = HardState(7, rng.choice((None, "n1")), 3, rng.random() < 0.5, 5, 6, 7, directories)
    return _written(state_files.write_hard_state, state)


def _checkpoint(rng: Random) -> bytes:
    runs = (TermRun(1, 0), TermRun(2, 5))[: rng.randrange(3)]
    checkpoint = state_files.Checkpoint(Tail(9, 2, 900, 77), 8, Base(3, 1, 300, 5), runs)
    return _written(state_files.write_checkpoint, checkpoint)


def _base(rng: Random) -> bytes:
    stored = state_files.StoredBase(Base(rng.randrange(9), 1, 300, 5), rng.random() < 0.5)
    return _written(state_files.write_base, stored)


def _damages(rng: Random) -> bytes:
    one = damage.KnownDamage(Damage(3, 5, "data/0", 300, "crc"), Tail(2, 1, 200, 7), Tail(5, 1, 500, 8))
    return _written(damage.write_damages, [one] * rng.randrange(3))


def _sessions(rng: Random) -> bytes:
    table = SessionTable()
    for index in range(rng.randrange(1, 6)):
        table.opened(index)
    return table.encode_all()


def _stored_sessions(rng: Random) -> bytes:
    return _written(state_files.write_sessions, 4, _sessions(rng))


def with_session_sum(data: bytes) -> bytes:
    if len(data) < 20:
        return data
    head = data[:12] + (len(data) - 20).to_bytes(4)
    return head + crc32(data[20:], crc32(head + bytes(4))).to_bytes(4) + data[20:]


def _identity_file(rng: Random) -> bytes:
    disk = SimDisk()
    members = rng.choice((None, ("n1", "n2")))
    identity.init_directory(_FILE.parent, identity.Identity("c", "g", "n1", members=members), disk=disk)
    return disk.content(_FILE.parent / "identity")


def _load_identity(data: bytes) -> None:
    disk = SimDisk()
    disk.mkdir(_FILE.parent)
    disk.set_content(_FILE.parent / "identity", data)
    identity.load_identity(_FILE.parent, disk=disk, cluster_id="c", node_id="n1")


def _manifest(rng: Random) -> bytes:
    disk = SimDisk()
    disk.mkdir(Path("/backup"))
    frames = [
        Frames(one.first_index, one.last_index, bytes(one.data)) for one in make_batches(rng.randrange(4))
    ]
    own = identity.Identity("c", "g", "n1", data_file_size=SIZE)
    backup.write_backup(frames, own, Path("/backup/one"), disk=disk)
    return disk.content(Path("/backup/one") / MANIFEST)


def _read_manifest(data: bytes) -> None:
    disk = SimDisk()
    disk.mkdir(_FILE.parent)
    disk.set_content(_FILE.parent / MANIFEST, data)
    backup.read_manifest(_FILE.parent, disk=disk)


# -- what members and clients send

_MEMBERS = ["n1", "n2", "n3"]
KNOWN: Known = {
    "version": (2, 2, 1),
    "cluster_id": ("c",),
    "group": ("g",),
    "local_id": ("n2", "n3"),
    "remote_id": ("n1",),
    "members": (_MEMBERS,),
    "incarnation": (1, 7),
    "term": (7, 8, 1 << 62),
    "round": (1, 2),
    "stream_id": (1, 1 << 32),
    "committed_index": (-1, 3),
    "index": (-1, 4),
    "index_term": (-1, 3),
    "prev_index": (-1,),
    "prev_term": (-1,),
    "first_index": (0,),
    "last_index": (0, 2),
    "code": (0, 200),
    "type": (0, 1, 2, 3),
    "vote_result": (0, 1, 2),
    "frames": lambda rng: _entries(rng),
    "owner": ("", "{}", '{"a": 1}', "[]", "{"),
}
_ENVELOPE = PeerIdentity("c", "g", "n1", tuple(_MEMBERS), incarnation=3)
_SENDER = PeerIdentity("c", "g", "n2", tuple(_MEMBERS), incarnation=3)


def made(message_type: type[Any], known: Known, *, wild: float = 0.1) -> Callable[[Random], bytes]:
    """Messages of this type, made from its descriptor."""
    return lambda rng: filled(message_type(), rng, known, wild=wild).SerializeToString()


def from_wire(message_type: type[Any], convert: Callable[..., Any], *more: Any) -> Callable[[bytes], Any]:
    """What a servicer does: bytes to a message, and that to one of ours."""
    parse = parser(message_type)

    def decode(data: bytes) -> Any:
        message = parse(data)
        return None if message is None else convert(message, *more)

    return decode


def _append(rng: Random) -> bytes:
    data = _entries(rng) * rng.choice((1, 1, 40))
    count = len(batch.decode_entries(data))
    append = peer.Append(prev_index=-1, prev_term=-1, first_index=0, last_index=count - 1, frames=data)
    return peer.PushRequest(term=9, stream_id=1, committed_index=-1, append=append).SerializeToString()


def _pushes(rng: Random) -> bytes:
    return _append(rng) if rng.random() < 0.5 else made(peer.PushRequest, KNOWN)(rng)


def _decode_push(data: bytes) -> None:
    found = append_wire.parse_push(data)
    if found is not None:
        convert_peer.push_from_pb(found, "n2")


def _membership(rng: Random) -> bytes:
    names = [f"n{number}" for number in range(rng.randint(1, 6))]
    identities = tuple(
        Member(name, rng.randint(0, 1 << 40), f"{name}:1", rng.randint(0, 9)) for name in names
    )
    split = rng.randint(1, len(names))
    voters, learners = tuple(names[:split]), tuple(names[split:])
    outgoing = tuple(rng.sample(names, rng.randint(0, len(names))))
    recovery = Recovery(rng.randint(1, 9), rng.randint(1, 1 << 62)) if rng.random() < 0.5 else NO_RECOVERY
    return encode_membership(Membership(voters, outgoing, learners, identities, recovery))


def _peer(name: str, message_type: type[Any], convert: Callable[..., Any], *more: Any) -> Target:
    decode = from_wire(message_type, convert, *more)
    return Target(name, made(message_type, KNOWN), decode, (convert,), (InvalidRequest,))


def _check_envelope(message: peer.Envelope) -> None:
    _ENVELOPE.check(message)


def _scrub(message: admin.ScrubResponse) -> None:
    convert_admin.scrub_from_pb(message)


TARGETS = (
    Target("entries", _entries, batch.decode_entries, (batch.decode_entries,), (DamagedBatch,)),
    Target(
        "entries-verified",
        _entries,
        batch.verify_entries,
        (batch.verify_entries,),
        (DamagedBatch,),
        with_sums,
    ),
    Target(
        "batches",
        _entries,
        _decode_batches,
        (batch.parse_batches, batch.parse_batch),
        (DamagedBatch,),
        with_sums,
    ),
    Target("entry-run-verified", _entries, _run, (batch.verify_run,), (DamagedBatch,), with_sums),
    Target(
        "entry-run",
        _entries,
        lambda data: (bool(EntryRun([data])), list(EntryRun([data])), EntryRun([data])[-1:]),
        (),
        (DamagedBatch,),
    ),
    Target(
        "entries-at-client",
        _entries,
        lambda data: (client_reader.decode(data, -1), client_reader.decode(data, 2)),
        (client_reader.decode,),
        (StorageError,),
        with_sums,
    ),
    Target(
        "entry-header",
        lambda rng: _entries(rng)[:48],
        batch.unpack_header,
        (batch.unpack_header,),
        (DamagedBatch,),
    ),
    Target("internal-entry", _internal, decode_internal, (decode_internal,)),
    Target("index-records", lambda rng: index_records(_entries(rng)), _unpack_record, (unpack_record,)),
    Target(
        "session-table",
        _sessions,
        lambda data: SessionTable().load(data),
        (SessionTable.load,),
        (ValueError,),
    ),
    Target(
        "session-file",
        _stored_sessions,
        _read(state_files.read_sessions),
        (state_files.read_sessions,),
        repair=with_session_sum,
    ),
    Target(
        "properties",
        _hard_state,
        lambda data: (parse_properties(data), is_intact(data)),
        (parse_properties,),
        repair=with_crc_line,
        text=True,
    ),
    Target(
        "hard-state",
        _hard_state,
        _read(state_files.read_hard_state),
        (state_files.read_hard_state,),
        (StorageError,),
        with_crc_line,
        text=True,
    ),
    Target(
        "checkpoint",
        _checkpoint,
        _read(state_files.read_checkpoint),
        (state_files.read_checkpoint,),
        (StorageError,),
        with_crc_line,
        text=True,
    ),
    Target(
        "base", _base, _read(state_files.read_base), (state_files.read_base,), repair=with_crc_line, text=True
    ),
    Target(
        "image-manifest",
        _image_manifest,
        decode_manifest,
        (decode_manifest,),
        (ValueError,),
        with_json_crc,
        text=True,
    ),
    Target(
        "damage-list",
        _damages,
        _read(damage.read_damages),
        (damage.read_damages,),
        repair=with_crc_line,
        text=True,
    ),
    Target(
        "identity",
        _identity_file,
        _load_identity,
        (identity.load_identity,),
        (StorageError,),
        with_json_crc,
        text=True,
    ),
    Target(
        "backup-manifest",
        _manifest,
        _read_manifest,
        (backup.read_manifest, load_manifest),
        (StorageError,),
        with_json_crc,
        text=True,
    ),
    Target(
        "push",
        _pushes,
        _decode_push,
        (append_wire.parse_push, convert_peer.push_from_pb, read_varint),
        (InvalidRequest, DamagedBatch),
    ),
    Target(
        "envelope",
        lambda rng: _SENDER.envelope("n1").SerializeToString(),
        from_wire(peer.Envelope, _check_envelope),
        (),
        (InvalidRequest,),
    ),
    _peer("vote-request", peer.VoteRequest, convert_peer.vote_request_from_pb),
    _peer("vote-response", peer.VoteResponse, convert_peer.vote_response_from_pb, "n2"),
    _peer("heartbeat-request", peer.HeartbeatRequest, convert_peer.heartbeat_from_pb),
    _peer("heartbeat-response", peer.HeartbeatResponse, convert_peer.heartbeat_response_from_pb, "n2"),
    _peer("position-request", peer.PositionRequest, convert_peer.position_request_from_pb),
    _peer("position-response", peer.PositionResponse, convert_peer.position_response_from_pb, "n2"),
    _peer("take-leadership", peer.TakeLeadershipRequest, convert_peer.take_leadership_from_pb),
    _peer(
        "take-leadership-response",
        peer.TakeLeadershipResponse,
        convert_peer.take_leadership_response_from_pb,
        "n2",
    ),
    _peer("push-response", peer.PushResponse, convert_peer.push_response_from_pb, "n2"),
    Target("membership", _membership, decode_membership, (decode_membership,)),
    _peer("change-of-members", admin.ChangeMembersRequest, convert_admin.change_from_pb),
    Target(
        "node-status",
        made(admin.NodeStatus, KNOWN),
        from_wire(admin.NodeStatus, convert_admin.node_status_from_pb),
        (convert_admin.node_status_from_pb, convert_admin.damaged_from_pb),
    ),
    Target(
        "scrub-response",
        made(admin.ScrubResponse, KNOWN),
        from_wire(admin.ScrubResponse, _scrub),
        (convert_admin.scrub_from_pb,),
    ),
    Target(
        "backup-head",
        made(admin.BackupHead, KNOWN),
        from_wire(admin.BackupHead, convert_admin.backup_head_from_pb),
        (convert_admin.backup_head_from_pb,),
    ),
)
