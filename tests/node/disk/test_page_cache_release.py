"""What a follower that catches up stores does not fill the page cache of its machine."""

from __future__ import annotations

from dledger.node.disk.disk_worker import KEPT_BYTES, STEP_BYTES, PageCacheRelease

MIB = 1 << 20


def stored(late: PageCacheRelease, begin: int, end: int) -> list[tuple[int, int]]:
    """What is dropped while so much is stored, a MiB at a time."""
    found = [late.stored(pos, pos + MIB) for pos in range(begin, end, MIB)]
    return [dropped for dropped in found if dropped is not None]


def test_all_but_the_newest_of_a_catch_up_is_dropped_once_in_steps() -> None:
    begin, end = 5 * MIB, 1000 * MIB
    dropped = stored(PageCacheRelease(), begin, end)
    assert [first for first, _ in dropped] == [begin, *(until for _, until in dropped[:-1])]
    assert all(until - first == STEP_BYTES for first, until in dropped)
    assert 0 <= end - KEPT_BYTES - dropped[-1][1] < STEP_BYTES


def test_a_follower_that_was_late_for_a_moment_keeps_all() -> None:
    late = PageCacheRelease()
    for moment in range(100):
        begin = moment * 1000 * MIB
        assert stored(late, begin, begin + KEPT_BYTES) == []


def test_what_was_there_before_a_catch_up_stays() -> None:
    late = PageCacheRelease()
    stored(late, 0, 2 * KEPT_BYTES)
    again = 20 * KEPT_BYTES
    dropped = stored(late, again, again + 2 * KEPT_BYTES)
    assert dropped[0][0] == again
    assert dropped[-1][1] <= again + KEPT_BYTES


def test_the_blank_end_of_a_data_file_is_no_other_catch_up() -> None:
    late = PageCacheRelease()
    assert stored(late, 0, KEPT_BYTES) == []
    begin = KEPT_BYTES + MIB // 2
    assert stored(late, begin, begin + 8 * MIB) == [(0, begin + 8 * MIB - KEPT_BYTES)]


def test_after_a_truncation_nothing_is_dropped_but_what_is_stored_anew() -> None:
    late = PageCacheRelease()
    stored(late, 0, 2 * KEPT_BYTES)
    cut = KEPT_BYTES // 2
    dropped = stored(late, cut, cut + KEPT_BYTES + STEP_BYTES)
    assert dropped == [(cut, cut + STEP_BYTES)]
