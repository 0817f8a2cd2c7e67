"""What retention must not forget over a restart, and must not do again and again."""

from __future__ import annotations

from itertools import permutations

import pytest

from dledger.core.values import Base
from dledger.replica.admission import AppendLimits
from dledger.replica.retention import Border, RetentionLimits, held_back, kept_for_owner, select_base
from dledger.replica.shell import PurgeJob
from dledger.store.format.internal import ImageBegin, Purge, decode_internal, strip_stamp
from dledger.store.identity import Identity
from dledger.testing.memory_store import MemoryLogStore
from tests.replica.replica_world import Host

FILE = 4096
LIMITS = AppendLimits(max_body_bytes=2000, max_batch_bytes=3000)
POLICY = RetentionLimits(max_bytes=FILE, hold_bytes=0, check_ms=20)


def internals(host: Host) -> list[object]:
    heads = host.store.iter_heads(host.store.begin_index)
    return [strip_stamp(decode_internal(batch.head))[1] for batch in heads]


def small_host(store: MemoryLogStore | None = None, policy: RetentionLimits = POLICY) -> Host:
    store = store or MemoryLogStore(Identity("cluster", "group", "a", FILE))
    host = Host("a", ["a"], store=store, limits=LIMITS)
    host.replica.retainer.policy = policy
    return host.lead_alone()


def fill(host: Host, count: int) -> None:
    for number in range(count):
        host.append(f"{host.now} {number}", bytes(500))
        host.disk()
        host.store.prepare(4 * FILE)


def live(host: Host, ticks: int, image: int) -> int:
    """Let time pass; the state has `image` bytes. How many images were begun."""
    begun = 0
    for _ in range(ticks):
        host.pass_time(20)
        host.disk()
        host.store.prepare(4 * FILE)
        while host.shell.images:
            begun += 1
            host.save_image(bytes(image))
    return begun


def test_an_image_above_max_bytes_is_not_written_again_and_again_whoever_leads() -> None:
    host = small_host()
    fill(host, 30)
    assert live(host, 100, image=5 * FILE) >= 1
    assert host.store.begin_index > 0
    assert live(host, 100, image=5 * FILE) == 0
    host.replica.retainer.stop()  # as when leadership goes elsewhere, and comes back
    assert live(host, 100, image=5 * FILE) == 0
    for with_table in (True, False):
        committed, sessions = host.replica.checkpoint()
        host.store.save_checkpoint(committed, sessions if with_table else None)
        host = small_host(host.store)
        assert live(host, 100, image=5 * FILE) == 0, "a restart is no reason either"
    fill(host, 120)
    assert live(host, 100, image=5 * FILE) >= 1, "but growth is"


def host_about_to_purge() -> tuple[Host, PurgeJob]:
    """A host whose disk is about to carry out a committed PURGE."""
    host = small_host()
    fill(host, 30)
    for _ in range(100):
        host.pass_time(20)
        while host.shell.jobs:
            job = host.shell.jobs[0]
            if isinstance(job, PurgeJob):
                return host, job
            host.one_job()
        while host.shell.images:
            host.save_image()
        host.store.prepare(4 * FILE)
    raise AssertionError("nothing was purged")


def test_a_purge_that_is_put_off_is_carried_out_by_the_next_life() -> None:
    host, _ = host_about_to_purge()
    assert any(isinstance(value, Purge) for value in internals(host))
    committed, sessions = host.replica.checkpoint()
    assert sessions is not None, "what the table covers is not read again, so it says what was put off"
    host.store.save_checkpoint(committed, sessions)
    assert host.store.begin_index == 0
    again = small_host(host.store, RetentionLimits())
    live(again, 3, image=5)
    assert again.store.begin_index > 0


@pytest.mark.parametrize(
    ("free", "expected"),
    [(1000, None), (999, 10), (901, 10), (900, 10), (899, 20), (750, 20), (749, 30), (0, 30)],
)
def test_for_space_no_more_goes_than_is_missing(free: int, expected: int | None) -> None:
    borders = [
        Border(Base(index, 1, pos, 0), stamp_ms=-1) for index, pos in ((10, 1100), (20, 1250), (30, 2000))
    ]
    policy = RetentionLimits(min_free_bytes=1000)
    wanted = select_base(policy, borders, 1000, 3000, now_ms=0, requested_before=-1, free_bytes=free)
    assert (None if wanted is None else wanted.index) == expected


def test_a_leader_purges_until_enough_of_its_disk_is_free_and_no_further() -> None:
    store = MemoryLogStore(Identity("cluster", "group", "a", FILE))
    host = small_host(store)
    fill(host, 70)
    assert store.tail.pos > 9 * FILE and store.begin_index == 0
    free = store.free_bytes()
    host.replica.retainer.policy = RetentionLimits(min_free_bytes=free + 5 * FILE, hold_bytes=0, check_ms=20)
    live(host, 200, image=100)
    assert 0 < store.base.pos < 9 * FILE
    assert store.free_bytes() == free + 5 * FILE


@pytest.mark.parametrize(
    ("needed_from", "expected"), [(0, None), (1099, None), (1100, 10), (1999, 20), (9999, 20)]
)
def test_what_the_owner_still_reads_is_kept(needed_from: int, expected: int | None) -> None:
    borders = [Border(Base(index, 1, pos, 0), -1) for index, pos in ((10, 1100), (20, 1250), (30, 2000))]
    kept = kept_for_owner(borders, borders[1].base, needed_from)
    assert (None if kept is None else kept.index) == expected


def test_a_leader_keeps_the_log_from_where_its_owner_reads_and_says_what_it_would_purge() -> None:
    host = small_host()
    needed_from = 2 * FILE + 17
    host.replica.retainer.needed_from = lambda: needed_from
    fill(host, 70)
    live(host, 100, image=100)
    assert host.store.base.pos == 2 * FILE
    assert host.replica.retainer.wanted_pos > 3 * FILE
    needed_from = 1 << 62
    live(host, 100, image=100)
    assert host.store.base.pos > 3 * FILE
    host.replica.retainer.stop()
    assert host.replica.retainer.wanted_pos == -1


def test_a_slow_follower_holds_purging_back_up_to_so_many_bytes() -> None:
    borders = [Border(Base(index, 1, 100 * index, 0), -1) for index in (1, 2, 3)]
    wanted = borders[-1].base

    def allowed(index: int, pos: int) -> Base | None:
        return held_back(borders, wanted, [(9, 900), (index, pos)], 1_000, 800)

    assert allowed(2, 200) == borders[1].base
    assert allowed(2, 199) == wanted, "it is left behind"
    assert allowed(0, 200) is None


@pytest.mark.parametrize("order", list(permutations([(9, 900), (1, 100), (2, 200)])))
def test_the_slowest_follower_holds_purging_back_whatever_their_order(
    order: tuple[tuple[int, int], ...],
) -> None:
    borders = [Border(Base(index, 1, 100 * index, 0), -1) for index in (1, 2, 3)]
    assert held_back(borders, borders[-1].base, order, 1_000, 1_000) == borders[0].base
    assert held_back(borders, borders[-1].base, order, 1_000, 899) == borders[1].base
    assert held_back(borders, borders[-1].base, order, 1_000, 799) == borders[-1].base


@pytest.mark.parametrize("entry", [ImageBegin, Purge])
def test_rule_9_a_leader_appends_no_image_and_no_purge_that_its_disk_cannot_take(
    entry: type[ImageBegin] | type[Purge], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What finds no room on the disk thread would end the process."""
    host = small_host()
    fill(host, 30)
    if entry is Purge:
        while host.store.images.newest is None:
            host.pass_time(20)
            host.disk()
            while host.shell.images:
                host.save_image()
    with monkeypatch.context() as full:
        full.setattr(host.store, "could_take", lambda *_: False)
        full.setattr(host.replica.admission, "has_room_for", lambda _: False)
        end = host.replica.admission.tail.index
        for _ in range(10):
            host.pass_time(20)
            host.disk()
        assert host.replica.admission.tail.index == end and not host.replica.retainer.is_writing
    live(host, 100, image=100)
    assert host.store.begin_index > 0


def test_entries_appended_before_a_step_of_days_are_not_purged_as_old() -> None:
    """A lone node's stamps are those of before its stop until its clock has been steady."""
    now_ms, hour_ms = 1_000 * 3_600_000, 3_600_000
    policy = RetentionLimits(max_age_ms=72 * hour_ms)

    def wanted(written_ms: int, wall_ms: int = now_ms) -> Base | None:
        border = Border(Base(1, 1, 100, 0), now_ms - 100 * hour_ms, written_ms)
        return select_base(policy, [border], 0, 200, now_ms, -1, 1 << 40, wall_ms=wall_ms)

    assert wanted(now_ms) is None
    assert wanted(now_ms - 71 * hour_ms) is None
    assert wanted(now_ms - 72 * hour_ms) is not None
    assert wanted(now_ms + 1) is not None, "the wall clock was set back: the stamp decides"
    assert wanted(0) is not None, "unknown"
