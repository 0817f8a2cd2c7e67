"""A CommitLog on a disk in memory, with records as small as tests need them."""

from __future__ import annotations

from pathlib import Path

from broker_adapter.log.classic.append_heads import encode_head, head_size
from broker_adapter.log.classic.commit_log_files import CommitLogFiles, CommitLogOptions
from broker_adapter.log.classic.layout import StorePaths
from broker_adapter.log.classic.recovery import FileWalk, open_commit_log
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, encode
from dledger.infra.files.disk import Disk
from dledger.testing.virtual.sim_disk import SimDisk

ROOT = Path("/store")
PATHS = StorePaths(ROOT)
FILE_SIZE = 1_024
BORN, STORED = Host(bytes((10, 0, 0, 1)), 40_000), Host(bytes((10, 0, 0, 2)), 10_911)
BEGIN_MS = 1_700_000_000_000


def opened(disk: Disk, *, file_size: int = FILE_SIZE, root: Path = ROOT, **options: object) -> CommitLogFiles:
    return open_commit_log(root, disk, CommitLogOptions(file_size, **options))  # type: ignore[arg-type]


def record(
    body: bytes, place: int, *, stamp: int = BEGIN_MS, topic: str = "t", properties: str = ""
) -> bytearray:
    message = MessageRecord(
        topic,
        body,
        physical_offset=place,
        store_timestamp=stamp,
        born_host=BORN,
        store_host=STORED,
        properties=properties,
    )
    return encode(message)


def put(log: CommitLogFiles, *bodies: bytes, stamp: int = BEGIN_MS) -> list[bytes]:
    """Appended as one group; the records."""
    places = log.place([len(record(body, 0)) for body in bodies])
    records = [bytes(record(body, place, stamp=stamp)) for body, place in zip(bodies, places, strict=True)]
    log.append(records)
    return records


def bodies_of(log: CommitLogFiles) -> list[bytes]:
    """Of all records, read back one by one."""
    found = []
    at = log.begin_offset
    while at < log.end_offset:
        left = log.file_size - at % log.file_size
        head = log.read(at, 8)
        if left < 8 or head[4:] == b"\xcb\xd4\x31\x94":
            at += left
            continue
        size = int.from_bytes(head[:4], "big")
        found.append(body_of(log.read(at, size)))
        at += size
    return found


def body_of(stored: bytes) -> bytes:
    size = int.from_bytes(stored[84:88], "big")
    return stored[88 : 88 + size]


def on_disk(disk: SimDisk) -> bytes:
    """All files of the log, one after the other."""
    paths = [path for path in disk.files() if path.parent == PATHS.commit_log]
    return b"".join(disk.content(path) for path in paths)


def records_in(disk: Disk, begin: int, file_size: int = FILE_SIZE) -> int:
    """Good ones from the begin of a file on."""
    handle = disk.open(PATHS.file(begin), write=False)
    try:
        return sum(1 for _ in FileWalk(disk, handle, begin, file_size).heads())
    finally:
        disk.close(handle)


def append_of(log: CommitLogFiles, *bodies: bytes, stamp: int = BEGIN_MS) -> tuple[int, list[bytes]]:
    """(physical offset, records) of an append of a broker, with its head; nothing is written."""
    sizes = [head_size(len(bodies), STORED), *(len(record(body, 0)) for body in bodies)]
    first, *places = log.place(sizes)
    records = [bytes(record(body, place, stamp=stamp)) for body, place in zip(bodies, places, strict=True)]
    return first, [encode_head(records, STORED, first, stamp), *records]
