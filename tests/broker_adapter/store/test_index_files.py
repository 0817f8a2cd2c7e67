"""IndexFiles: bytes worked out by hand, chains, roll-over and questions, against the obvious answer."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_adapter.store.consume_queue import CheckpointMismatch
from broker_adapter.store.index_files import IndexFiles, KeyedMessage
from broker_adapter.wire.index_layout import IndexItem, IndexShape, decode_header, decode_items, key_hash
from broker_adapter.wire.key_hashes import key_hashes
from dledger.infra.files.disk import OsDisk
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.store.helpers import EVER, ROOT

START = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


def new_files(shape: IndexShape) -> tuple[SimDisk, IndexFiles]:
    disk = SimDisk()
    disk.mkdir(ROOT)
    return disk, IndexFiles(ROOT, disk, shape=shape)


def test_a_file_has_exactly_these_bytes() -> None:
    """Hashes: T#a 84 * 31^2 + 35 * 31 + 97 = 81906, T#b 81907: slots 1 and 2 of 5. T#f 81911: slot 1, too."""
    disk, index = new_files(IndexShape(slots=5, items=5))
    index.add([("T", "a", None, 0x30, START), ("T", None, "b", 0x99, START + 1999)])
    index.add([("T", None, "f", 0x200, START + 2000)])
    index.snapshot(settle=True)
    assert [path.name for path in disk.files()] == ["20231114221320000"]
    assert disk.content(ROOT / "index/20231114221320000") == bytes.fromhex(
        "0000018BCFE56800 0000018BCFE56FD0 0000000000000030 0000000000000200 00000002 00000004"
        "00000000 00000003 00000002 00000000 00000000"
        "0000000000000000000000000000000000000000"
        "00013FF2 0000000000000030 00000000 00000000"
        "00013FF3 0000000000000099 00000001 00000000"
        "00013FF7 0000000000000200 00000002 00000001"
        "0000000000000000000000000000000000000000"
    )


def test_rocketmq_has_files_of_420_000_040_bytes_that_take_no_space(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("index")
    index = IndexFiles(root, OsDisk())
    index.add([("T", "a", None, 48, START)])
    (path,) = (root / "index").iterdir()
    assert path.stat().st_size == 420_000_040 and path.stat().st_blocks * 512 < 1 << 20
    assert list(index.find("T", "a", *EVER)) == [48]
    index.close()


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["T", "U"]),
        st.sampled_from([None, "a", "f", "k", "\u00fc\U0001f600", "x" * 600]),
        st.sampled_from([None, "a", "f k", "k k a", " "]),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.integers(1, 7), st.integers(2, 9), st.integers(1, 9))
def test_questions_are_answered_as_a_list_would_newest_first(
    messages: list[tuple[str, str | None, str | None]], slots: int, items: int, batch: int
) -> None:
    disk, index = new_files(IndexShape(slots, items))
    added: list[KeyedMessage] = [
        (topic, unique, keys, 48 + 100 * number, START + 700 * number)
        for number, (topic, unique, keys) in enumerate(messages)
    ]
    for first in range(0, len(added), batch):
        index.add(added[first : first + batch])
    twin = IndexFiles(ROOT, disk, shape=index.shape)
    twin.restore(index.snapshot().states)
    for topic in "TU":
        for key in ("a", "f", "k", "\u00fc\U0001f600", "x" * 600, "none"):
            expected = [
                (offset, stamp)
                for mine, unique, keys, offset, stamp in reversed(added)
                if mine == topic and (key == unique or key in (keys or "").split(" "))
            ]
            assert list(index.find(topic, key, *EVER)) == [offset for offset, _ in expected]
            begin, end = START + 5000, START + 15_000
            within = {offset for offset, stamp in expected if begin <= stamp <= end}
            found = list(index.find(topic, key, begin, end))
            assert within <= set(found) and found == sorted(found, reverse=True)
            # An item knows the second in its file, so what is up to a second older may come, too.
            assert set(found) <= {offset for offset, stamp in expected if begin - 1000 < stamp}
            assert list(twin.find(topic, key, *EVER)) == [offset for offset, _ in expected]
    assert index.items == sum(bool(u) + len((k or "").split()) for _, u, k in messages) == twin.items


def test_items_lead_to_the_one_before_in_their_slot_within_and_across_batches() -> None:
    shape = IndexShape(slots=1, items=9)
    disk, index = new_files(shape)
    for first in (0, 3):
        index.add([("T", str(number), None, 48 + number, START) for number in range(first, first + 3)])
    index.snapshot(settle=True)
    content = disk.content(disk.files()[0])
    header = decode_header(content, shape)
    assert (header.slots_in_use, header.next_item) == (1, 7)
    items = decode_items(content[shape.item_position(1) : shape.item_position(7)])
    assert items == [IndexItem(key_hash(f"T#{n}"), 48 + n, 0, n) for n in range(6)]


def test_files_roll_when_full_and_have_growing_names() -> None:
    disk, index = new_files(IndexShape(slots=3, items=3))  # room for two
    index.add([("T", f"k{number}", None, 48 + number, START) for number in range(7)])
    index.add([("T", "k7", None, 60, START - 5000), ("T", "k8", None, 61, -1)])
    names = [path.name for path in disk.files()]
    assert names == ["20231114221320000", *(f"2023111422132000{number}" for number in range(1, 5))]
    assert [offset for key in range(9) for offset in index.find("T", f"k{key}", 0, 1 << 60)][:7] == list(
        range(48, 55)
    )
    index.purge_below(51)
    snapshot = index.snapshot()
    assert [path.name for path in snapshot.doomed] == names[:1]
    assert list(index.find("T", "k0", *EVER)) == []


@pytest.mark.parametrize("next_item", [0, 13, -1])
def test_a_state_that_no_file_has_is_a_disagreement(next_item: int) -> None:
    disk, index = new_files(IndexShape(slots=3, items=12))
    index.add([("T", "a", None, 48, START)])
    (state,) = index.snapshot().states
    wrong = state._replace(header=state.header._replace(next_item=next_item))
    with pytest.raises(CheckpointMismatch):
        IndexFiles(ROOT, disk, shape=index.shape).restore([wrong])
    with pytest.raises(CheckpointMismatch):
        IndexFiles(ROOT, disk, shape=index.shape).restore([state, state])


TEXTS = st.lists(st.text(max_size=40) | st.text("ab#", min_size=500, max_size=520), max_size=20)


@given(TEXTS)
@example(["", "polygenelubricants", "T#k", "\U0001f600"])
def test_hashes_of_many_are_those_of_each(texts: list[str]) -> None:
    """The hash of "polygenelubricants" is -2^31, which has no absolute value in Java."""
    assert key_hashes(texts).tolist() == [key_hash(text) for text in texts]
