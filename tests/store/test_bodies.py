"""Bodies by position: the same for every store, and on disk what of it is damage."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dledger.core.values import EMPTY_TAIL, ENTRY_HEADER_SIZE, Tail
from dledger.errors import Code, InvalidRequest, ReadFailed
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.bodies import MAX_GAP_BYTES, MAX_READ_BYTES, span_runs
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import (
    MAGIC_NORMAL,
    Batch,
    decode_entries,
    encode_batch,
    unpack_header,
)
from dledger.store.format.layout import NodePaths, file_name
from dledger.store.identity import init_directory
from dledger.testing.memory_store import MemoryLogStore
from dledger.testing.virtual.sim_disk import SimDisk
from tests.store.helpers import IDENTITY, ROOT, SIZE, make_batches

LARGE = 4 << 20  # bytes of a data file in which reads have room


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest) -> LogStore:
    if request.param == "memory":
        return MemoryLogStore(IDENTITY)
    disk = SimDisk()
    init_directory(ROOT, IDENTITY, disk=disk)
    return DiskLogStore.open(ROOT, disk=disk)


def fill(store: LogStore, count: int = 40) -> dict[int, bytes]:
    """Bodies of users by position."""
    batches = make_batches(count, seed=3, tail=store.tail)
    store.append(batches)
    store.sync()
    return bodies_of(batches)


def bodies_of(batches: list[Batch]) -> dict[int, bytes]:
    entries = [entry for batch in batches for entry in decode_entries(batch.data)]
    return {entry.pos: entry.body for entry in entries if entry.magic == MAGIC_NORMAL}


def spans_of(bodies: dict[int, bytes]) -> list[tuple[int, int]]:
    return [(pos, len(body)) for pos, body in bodies.items()]


def test_bodies_come_in_the_order_they_are_asked_for(store: LogStore) -> None:
    bodies = fill(store)
    spans = spans_of(bodies)
    assert store.read_bodies(spans, store.tail.pos) == list(bodies.values())
    for seed in range(20):
        some = Random(seed).choices(spans, k=12)
        assert store.read_bodies(some, store.tail.pos) == [bodies[pos] for pos, _ in some]
    assert store.read_bodies([], store.tail.pos) == []


def test_bodies_that_are_written_and_not_yet_durable_can_be_read(store: LogStore) -> None:
    fill(store)
    batches = make_batches(3, seed=9, tail=store.tail)
    store.append(batches)
    bodies = bodies_of(batches)
    assert store.read_bodies(spans_of(bodies), store.tail.pos) == list(bodies.values())


def test_what_lies_beyond_the_end_or_beyond_what_may_be_read_is_out_of_range(store: LogStore) -> None:
    spans = spans_of(fill(store))
    last = spans[-1][0] + ENTRY_HEADER_SIZE + spans[-1][1]
    for span, end_pos in (
        (spans[-1], last - 1),
        ((store.tail.pos, 0), store.tail.pos),
        ((store.tail.pos, 0), 1 << 60),
        ((1 << 60, 10), 1 << 61),
    ):
        with pytest.raises(ReadFailed) as error:
            store.read_bodies([spans[0], span], end_pos)
        assert error.value.code is Code.INDEX_OUT_OF_RANGE
    assert len(store.read_bodies([spans[-1]], last)) == 1


def test_what_was_purged_is_told_apart_from_what_is_not_there_yet(store: LogStore) -> None:
    bodies = fill(store)
    base = store.borders()[1]
    store.purge_to(base)
    kept = {pos: body for pos, body in bodies.items() if pos >= base.pos}
    assert store.read_bodies(spans_of(kept), store.tail.pos) == list(kept.values())
    gone = next(span for span in spans_of(bodies) if span[0] < base.pos)
    for ask in (lambda: store.read_bodies([gone], store.tail.pos), lambda: [store.index_at_pos(gone[0])]):
        with pytest.raises(ReadFailed) as error:
            ask()
        assert error.value.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN


def test_a_span_that_is_no_entry_of_a_user_is_a_wrong_request(store: LogStore) -> None:
    spans = spans_of(fill(store))
    internal = next(store.iter_heads(0))
    pos, size = spans[5]
    wrong = [(pos + 1, size), (pos, size + 1), (internal.pos, len(internal.head)), (-1, 5), (pos, -1)]
    if size:
        wrong.append((pos, size - 1))
    for span in wrong:
        with pytest.raises(InvalidRequest):
            store.read_bodies([span], store.tail.pos)


def test_every_entry_is_found_by_its_position_and_nothing_else_is(store: LogStore) -> None:
    fill(store)
    begins = {store.entry(index).pos: index for index in range(store.end_index + 1)}
    for pos in range(store.tail.pos):
        if pos in begins:
            assert store.index_at_pos(pos) == begins[pos]
        else:
            with pytest.raises(InvalidRequest):
                store.index_at_pos(pos)
    with pytest.raises(ReadFailed) as error:
        store.index_at_pos(store.tail.pos)
    assert error.value.code is Code.INDEX_OUT_OF_RANGE


def test_an_empty_log_has_no_positions(store: LogStore) -> None:
    with pytest.raises(ReadFailed):
        store.index_at_pos(0)
    with pytest.raises(ReadFailed):
        store.read_bodies([(0, 0)], 1 << 60)


def test_damage_of_the_store_in_memory_is_met() -> None:
    store = MemoryLogStore(IDENTITY)
    spans = spans_of(fill(store))
    index = store.index_at_pos(spans[7][0])
    store.corrupt(index)
    with pytest.raises(EntryDamaged):
        store.read_bodies(spans, store.tail.pos)


def opened() -> tuple[SimDisk, DiskLogStore, dict[int, bytes]]:
    disk = SimDisk()
    init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    return disk, store, fill(store, 8)


def test_a_flipped_byte_of_a_header_or_body_is_named_by_its_index() -> None:
    """All but the fields that only the chain covers: index, term and channel, and chain_crc itself."""
    disk, store, bodies = opened()
    pos, body = next((pos, body) for pos, body in bodies.items() if len(body) > 20)
    index = store.index_at_pos(pos)
    path = NodePaths(ROOT).data / file_name(pos - pos % SIZE)
    only_chained = {*range(8, 24), *range(32, 40)}
    for at in set(range(ENTRY_HEADER_SIZE + len(body))) - only_chained:
        assert disk.flip_durable(path, pos % SIZE + at, 4) is not None
        with pytest.raises(EntryDamaged) as error:
            store.read_bodies([(pos, len(body))], store.tail.pos)
        assert error.value.index == index
        disk.flip_durable(path, pos % SIZE + at, 4)
        assert store.read_bodies([(pos, len(body))], store.tail.pos) == [body]


def test_what_is_known_to_be_damaged_is_not_given_away() -> None:
    disk, store, bodies = opened()
    pos = next(pos for pos, body in bodies.items() if body)
    path = NodePaths(ROOT).data / file_name(pos - pos % SIZE)
    disk.flip_durable(path, pos % SIZE + ENTRY_HEADER_SIZE, 1)
    damage = store.note_damage(store.index_at_pos(pos))
    assert damage is not None
    with pytest.raises(EntryDamaged) as error:
        store.read_bodies(spans_of(bodies), store.tail.pos)
    assert damage.first_index <= error.value.index <= damage.last_index
    good = {at: body for at, body in bodies.items() if store.index_at_pos(at) > damage.last_index}
    assert store.read_bodies(spans_of(good), store.tail.pos) == list(good.values())


def test_bodies_that_original_dledger_wrote_without_sums_are_read() -> None:
    disk = SimDisk()
    init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    batch = encode_batch(EMPTY_TAIL, 0, [b"original"], data_file_size=SIZE)
    data = bytearray(batch.data)
    data[36:44] = bytes(8)
    store.append([replace(batch, data=bytes(data), chain_crc=0)])
    store.append([encode_batch(Tail(0, 0, batch.end_pos, 0), 1, [b"ours"], data_file_size=SIZE)])
    store.sync()
    assert unpack_header(store.read(0, 0, 0, whole_batches=True).data).chain_crc == 0
    assert store.read_bodies([(batch.end_pos, 4), (0, 8)], store.tail.pos) == [b"ours", b"original"]


def test_neighbours_are_read_at_once_within_limits() -> None:
    body, far = 1000, MAX_GAP_BYTES + 2000
    step = ENTRY_HEADER_SIZE + body
    near = [(at * step, body) for at in range(10)]
    runs = span_runs([*reversed(near), (9 * step + far, body)], 0, LARGE, LARGE)
    assert [(run.pos, run.size, len(run.numbers)) for run in runs] == [
        (0, 10 * step, 10),
        (9 * step + far, step, 1),
    ]
    many = [(at * step, body) for at in range(3000)]
    sizes = [run.size for run in span_runs(many, 0, LARGE, LARGE)]
    assert max(sizes) <= MAX_READ_BYTES and len(sizes) == -(-3000 * step // MAX_READ_BYTES)
    one = span_runs([(0, 2 * MAX_READ_BYTES)], 0, LARGE, LARGE)
    assert [run.size for run in one] == [2 * MAX_READ_BYTES + ENTRY_HEADER_SIZE]


def test_a_read_stays_within_one_file() -> None:
    runs = span_runs([(SIZE - 100, 10), (SIZE, 10)], 0, LARGE, SIZE)
    assert [(run.pos, run.size) for run in runs] == [(SIZE - 100, 58), (SIZE, 58)]
