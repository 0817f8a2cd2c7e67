"""Building logs for the tests, and a second, deliberately dumb implementation of the encoding."""

from __future__ import annotations

from pathlib import Path
from random import Random
from zlib import crc32

from dledger.core.values import EMPTY_TAIL, Tail
from dledger.store.api import LogStore
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.identity import Identity, init_directory
from dledger.testing.stores import OrderedDisk
from dledger.testing.virtual.sim_disk import SimDisk

ROOT = Path("/node")
SIZE = 1024  # bytes per data file
IDENTITY = Identity("cluster", "group", "n0", data_file_size=SIZE)


def make_batches(
    count: int,
    *,
    seed: int = 0,
    tail: Tail = EMPTY_TAIL,
    term: int = 1,
    max_body: int = 150,
    size: int = SIZE,
) -> list[Batch]:
    """Batches of 1-3 entries; the term rises now and then, with a no-op first."""
    rng = Random(seed)
    batches = []
    for _ in range(count):
        new_term = rng.random() < 0.2
        term = max(term, tail.term) + new_term
        bodies = [rng.randbytes(rng.randrange(max_body)) for _ in range(rng.randrange(1, 4))]
        batch = encode_batch(tail, term, bodies, data_file_size=size, head=b"" if new_term else None)
        batches.append(batch)
        tail = batch.tail
    return batches


def new_sim_store(identity: Identity = IDENTITY) -> tuple[SimDisk, DiskLogStore]:
    """A fresh node directory on a simulated disk, open."""
    disk = OrderedDisk(ROOT, identity.data_file_size)
    init_directory(ROOT, identity, disk=disk)
    return disk, DiskLogStore.open(ROOT, disk=disk)


def read_all(store: LogStore, *, max_bytes: int = 700) -> bytes:
    """All entries of a log, through verified reads."""
    parts = []
    index = store.begin_index
    while index <= store.end_index:
        frames = store.read(index, store.end_index, max_bytes, whole_batches=True)
        assert frames.first_index == index
        parts.append(frames.data)
        index = frames.last_index + 1
    return b"".join(parts)


def join(batches: list[Batch]) -> bytes:
    return b"".join(bytes(batch.data) for batch in batches)


# -- the oracle


def dumb_entry(
    magic: int, index: int, term: int, pos: int, channel: int, body: bytes, previous_chain: int
) -> tuple[bytes, int]:
    """One entry, field by field, and its chain_crc."""
    before_chain = (
        magic.to_bytes(4, signed=True)
        + (48 + len(body)).to_bytes(4)
        + index.to_bytes(8)
        + term.to_bytes(8)
        + pos.to_bytes(8)
        + channel.to_bytes(4)
    )
    after_chain = crc32(body).to_bytes(4) + len(body).to_bytes(4)
    chain = crc32(before_chain + after_chain + previous_chain.to_bytes(4))
    if chain == 0:
        chain = 1
    return before_chain + chain.to_bytes(4) + after_chain + body, chain


def dumb_batch(
    tail: Tail, term: int, bodies: list[bytes], file_size: int, head: bytes | None
) -> tuple[bytes, Tail]:
    """A batch, entry by entry, and the tail after it."""
    all_bodies = ([(2, head)] if head is not None else []) + [(1, body) for body in bodies]
    size = sum(48 + len(body) for _, body in all_bodies)
    pos = tail.pos
    if pos % file_size + size > file_size - 8:
        pos = (pos // file_size + 1) * file_size
    index, chain, data = tail.index, tail.chain_crc, b""
    for number, (magic, body) in enumerate(all_bodies):
        index += 1
        left = len(all_bodies) - number - 1
        entry, chain = dumb_entry(magic, index, term, pos + len(data), left, body, chain)
        data += entry
    return data, Tail(index, term, pos + len(data), chain)


def corrupt(disk: SimDisk, first: Batch, last: Batch) -> None:
    """From the first header to the last: also what lies between is lost."""
    for start in range(first.pos - first.pos % SIZE, last.end_pos, SIZE):
        for offset in range(max(first.pos - start, 0), min(last.end_pos - start, SIZE)):
            disk.flip(ROOT / "data" / f"{start:020d}", offset, 0x5A)
