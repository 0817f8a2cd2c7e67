"""Files of a classic CommitLog: what recovery makes of any bytes, compared with the slow oracle."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.log.classic.append_heads import decode_head, encode_head, head_size
from broker_adapter.log.classic.commit_log_files import CommitLogOptions
from broker_adapter.log.classic.layout import StorePaths, blank_head, places_of
from broker_adapter.log.classic.log_retention import parse_delete_when
from broker_adapter.log.classic.node.roles import read_role, write_role
from broker_adapter.log.classic.record_check import check_record, claimed_size
from broker_adapter.log.classic.recovery import FileWalk, open_commit_log
from broker_adapter.log.classic.store_checkpoint import StoreCheckpoint, decode_checkpoint, load_checkpoint
from broker_adapter.server.table_base import FILE_NAME as BASE_NAME
from broker_adapter.server.table_base import read_base
from broker_adapter.server.table_merge import parse_tables
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, decode, encode
from dledger import ConfigError
from dledger.infra.files.disk import replace_file
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.classic.slow_log import records_of
from tests.fuzz.target import Target
from tests.fuzz.targets_broker import with_record_sums

_ROOT = Path("/s")
_FILE_SIZE = 512
_MOST_FILES = 4
#: Whether it was stopped, up to where the checkpoint says that all is durable (-1: it does not), and what
#: its timestamps are.
_HEAD = struct.Struct(">?hqq")


def _checkpoint(rng: Random) -> bytes:
    flushed = rng.choice((None, 0, 1 << 40))
    return StoreCheckpoint(rng.randrange(1 << 42), 2, 3, 4, 5, flushed).encode()[: rng.choice((4096, 76))]


def _read_checkpoint(data: bytes) -> None:
    found = decode_checkpoint(data)
    if found.recovery_ms < 0 or decode_checkpoint(found.encode()) != found:
        raise AssertionError("it reads other values than it writes")


def _store(rng: Random) -> bytes:
    bodies = [rng.randbytes(rng.choice((0, 5, 30, 300))) for _ in range(rng.randrange(9))]
    hosts = Host(bytes(4), 1), Host(bytes(16), 2)
    messages = [
        MessageRecord(
            "t",
            body,
            store_timestamp=1_000 * number,
            born_host=rng.choice(hosts),
            store_host=rng.choice(hosts),
        )
        for number, body in enumerate(bodies)
    ]
    places = places_of(0, [len(encode(message)) for message in messages], _FILE_SIZE)
    log = b""
    for message, place in zip(messages, places, strict=True):
        log = log + blank_head(place - len(log)) if place > len(log) else log
        log = log.ljust(place, b"\0") + encode(message._replace(physical_offset=place))
    bound = rng.choice((-1, 0, len(log)))
    return _HEAD.pack(rng.random() < 0.5, bound, rng.randrange(9_000), rng.randrange(9_000)) + log


def _recover(data: bytes) -> None:
    """The log ends where the oracle says, and a second recovery finds the same."""
    was_clean, bound, physic_ms, logics_ms = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    log = data[_HEAD.size :][: _MOST_FILES * _FILE_SIZE]
    log += bytes(-len(log) % _FILE_SIZE)
    disk, paths = SimDisk(), StorePaths(_ROOT)
    disk.mkdir(paths.root)
    disk.mkdir(paths.commit_log)
    for begin in range(0, len(log), _FILE_SIZE):
        disk.set_content(paths.file(begin), log[begin : begin + _FILE_SIZE])
    flushed = bound if bound >= 0 else None
    disk.set_content(paths.checkpoint, StoreCheckpoint(physic_ms, logics_ms, flushed_offset=flushed).encode())
    if not was_clean:
        disk.set_content(paths.abort, b"1")
    opened = open_commit_log(_ROOT, disk, CommitLogOptions(_FILE_SIZE))
    # Files before the first that is looked at are believed, whatever is in them.
    begin = opened.recovery.scanned_from
    _, end = records_of(log[begin:], begin, _FILE_SIZE)
    if opened.end_offset != end:
        raise AssertionError(f"it ends at {opened.end_offset}, not at {end}")
    opened.close()
    again = open_commit_log(_ROOT, disk, CommitLogOptions(_FILE_SIZE))
    if again.end_offset != end or again.recovery.cut_bytes:
        raise AssertionError(f"it ends at {end}, and then at {again.end_offset}")


def _head(rng: Random) -> bytes:
    host = rng.choice((Host(bytes(4), 1), Host(bytes(16), 2)))
    return encode_head(
        [rng.randbytes(9) for _ in range(rng.randrange(1, 5))], host, 7, rng.randrange(1 << 42)
    )


def _read_head(data: bytes) -> None:
    """Records get here checked."""
    check_record(data, 0, 7, len(data))
    head = decode_head(data)
    if head is not None and head_size(len(head.sums), decode(data).store_host) != len(data):
        raise AssertionError("it has another size than a head for so many records")


def _hours(rng: Random) -> bytes:
    return ";".join(f"{rng.randrange(24):02d}" for _ in range(rng.randrange(1, 4))).encode()


def _read_hours(data: bytes) -> None:
    if not parse_delete_when(data.decode(errors="replace")) <= set(range(24)):
        raise AssertionError("an hour that no day has")


def _role(rng: Random) -> bytes:
    value = {"isMaster": rng.random() < 0.5, "term": rng.randrange(9), "roleEpoch": rng.randrange(1 << 42)}
    return json.dumps(value).encode()


def _read_role(data: bytes) -> None:
    """What is written of it is read again."""
    disk = SimDisk()
    disk.mkdir(_ROOT)
    disk.set_content(_ROOT / "role.json", data)
    found = read_role(disk, _ROOT, is_master=True)
    write_role(disk, _ROOT, found)
    if read_role(disk, _ROOT, is_master=True) != found:
        raise AssertionError("it reads another role than it writes")


def _base(rng: Random) -> bytes:
    content = json.dumps({"topicConfigTable": {"t": {"topicName": "t", "perm": 6}}})
    tables = {
        "tables": {"topics.json": content},
        "incarnations": [["t", rng.randrange(4), rng.randrange(1 << 40)]],
        "was_clean": rng.random() < 0.5,
    }
    value = {
        "version": 1,
        "position": 7,
        "number": rng.randrange(9),
        "written": tables,
        "before": rng.choice((None, tables)),
        "merges": [tables] * rng.randrange(3),
        "replaces_written": rng.random() < 0.5,
    }
    return json.dumps(value).encode()


def _read_base(data: bytes) -> None:
    disk = SimDisk()
    disk.mkdir(_ROOT)
    replace_file(disk, _ROOT / BASE_NAME, data)
    base = read_base(disk, _ROOT)
    if base is None:
        raise StoredDataDamaged(Status.STORE_TABLE_DAMAGED, "no base")
    for seen in base.history(disk, _ROOT):
        parse_tables(seen.contents)


TARGETS = (
    Target("classic-base", _base, _read_base, (read_base, parse_tables), (StoredDataDamaged,), text=True),
    Target("classic-role", _role, _read_role, (read_role, write_role), (StoredDataDamaged,), text=True),
    Target(
        "classic-append-head",
        _head,
        _read_head,
        (decode_head,),
        (StoredDataDamaged,),
        repair=with_record_sums,
    ),
    Target("classic-hours", _hours, _read_hours, (parse_delete_when,), (ConfigError,), text=True),
    Target("classic-checkpoint", _checkpoint, _read_checkpoint, (decode_checkpoint, StoreCheckpoint.encode)),
    Target(
        "classic-recovery",
        _store,
        _recover,
        (open_commit_log, load_checkpoint, FileWalk.heads, check_record, claimed_size),
        (StoredDataDamaged,),
    ),
)
