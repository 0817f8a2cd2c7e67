"""Limits that addresses share: the share of each, refusals, and the order of those that wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dledger.infra.quotas import FairQueue, Quota, client_of, peer_host

ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "")


def filled(quota: Quota, address: str, size: int = 1) -> int:
    """Acquire all that the address gets. Return how much."""
    before = quota.used
    while quota.fits(address, size):
        quota.acquire(address, size)
    return quota.used - before


@pytest.mark.parametrize("total", [1, 2, 3, 4, 5, 8, 100, 256, 1024])
def test_one_address_alone_leaves_a_quarter(total: int) -> None:
    assert filled(Quota(total), "10.0.0.1") == total - total // 4


def test_an_address_without_any_gets_a_place_as_long_as_one_is_free() -> None:
    quota, got = Quota(256), list[int]()
    while (count := filled(quota, f"10.0.0.{len(got)}")) > 0:
        got.append(count)
    assert got == sorted(got, reverse=True) and got[:3] == [192, 48, 12]
    assert sum(got) == quota.used == 256


def test_an_address_gets_three_quarters_of_what_the_others_leave_as_they_come_and_go() -> None:
    quota = Quota(100)
    for address in ("a", "b"):
        quota.acquire(address, 20)
    assert 20 + filled(quota, "a") == 60  # three quarters of the 80 that b leaves
    quota.release("b", 20)
    assert 60 + filled(quota, "a") == 75


def test_no_address_has_no_share() -> None:
    assert filled(Quota(8), "") == 8


def test_something_alone_fits_however_large() -> None:
    quota = Quota(10)
    assert quota.fits("a", 100)
    with quota.holding("a", 100):
        assert not quota.fits("b", 1)
    assert quota.used == 0


def test_less_fits_always_also_for_an_address_that_has_more_than_it_would_get_now() -> None:
    """Otherwise the amount that it gives up would count for ever."""
    quota = Quota(100)
    quota.acquire("a", 75)
    quota.acquire("b", 25)
    assert not quota.resize("a", 75, 76)
    assert quota.resize("a", 75, 74) and quota.used == 99
    assert not quota.resize("a", 74, 75)
    assert quota.resize("a", 74, 0) and quota.used == 25
    assert quota.resize("a", 0, 1) and quota.used == 26


def test_a_refusal_says_who_has_what_and_what_to_do() -> None:
    quota = Quota(4, "streams are open", "close some")
    filled(quota, "10.0.0.1")
    assert quota.refusal("10.0.0.1") == (
        "3 of 4 streams are open for 10.0.0.1, which leaves the rest to others; close some"
    )
    filled(quota, "10.0.0.2")
    assert quota.refusal("10.0.0.3") == "4 streams are open; close some"


@given(st.lists(st.tuples(st.sampled_from(ADDRESSES), st.integers(1, 40)), max_size=60))
def test_whatever_was_acquired_is_free_again_once_it_is_released(requests: list[tuple[str, int]]) -> None:
    quota = Quota(64)
    held = [one for one in requests if quota.fits(*one) and quota.acquire(*one) is None]
    assert quota.used == sum(size for _, size in held)
    for address, size in held:
        quota.release(address, size)
    assert quota.used == 0 and not quota._of


class Requests(RuleBasedStateMachine):
    """Requests of any size that are granted, withdrawn and released in any order."""

    TOTAL = 64

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(self.TOTAL)
        self.next = 0
        self.held: dict[int, tuple[str, int]] = {}
        self.waiting: dict[int, tuple[str, int]] = {}  # in the order of the requests
        self.callbacks: dict[int, Callable[[], None]] = {}

    def granted(self, number: int) -> None:
        address = self.waiting[number][0]
        ahead = [other for other, (at, _) in self.waiting.items() if at == address and other < number]
        assert not ahead, "requests of one address are granted in their order"
        self.held[number] = self.waiting.pop(number)

    @rule(address=st.sampled_from(ADDRESSES), size=st.integers(1, 80))
    def request(self, address: str, size: int) -> None:
        number, self.next = self.next, self.next + 1
        self.waiting[number] = (address, size)
        callback = self.callbacks[number] = partial(self.granted, number)
        if self.queue.request(callback, address, size):
            self.granted(number)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.queue.release(*self.held.pop(data.draw(st.sampled_from(sorted(self.held)))))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        address, _ = self.waiting.pop(number)
        self.queue.withdraw(self.callbacks[number], address)

    @invariant()
    def counts_are_those_of_the_requests(self) -> None:
        assert self.queue.used == sum(size for _, size in self.held.values())
        assert self.queue.waiting == len(self.waiting)
        assert self.queue.used <= self.TOTAL or len(self.held) == 1

    @invariant()
    def nothing_waits_that_fits_unless_an_earlier_request_is_due(self) -> None:
        """So a free part of the limit is never lost, and no two requests wait for each other."""
        first = dict(reversed(self.waiting.values()))
        due = [at for at, size in first.items() if self.queue._quota.is_within_share(at, size)]
        if due:
            assert any(not self.queue._quota.is_free(first[at]) for at in due)
        if not self.held:
            assert not self.waiting


TestRequests = Requests.TestCase


@given(st.integers(1, 64), st.integers(1, 200))
def test_an_address_waits_for_one_request_of_a_flood_at_most(total: int, more: int) -> None:
    queue, granted = FairQueue(total), list[str]()

    def request(address: str) -> None:
        def note() -> None:
            granted.append(address)

        if queue.request(note, address):
            note()

    for _ in range(total + more):
        request("flood")
    running = len(granted)
    assert running == total - total // 4
    request("other")
    for _ in range(2):
        if "other" not in granted:
            queue.release("flood")
    assert "other" in granted[running:]


def test_requests_beyond_a_share_delay_no_other_address() -> None:
    queue = FairQueue(64)
    granted = [queue.request(partial(int, number), "a", 4) for number in range(20)]
    assert sum(granted) == 12, "three quarters"
    assert all(queue.try_acquire("b", 4) for _ in range(3))
    assert queue.try_acquire("c", 4)
    assert not queue.request(lambda: None, "d", 4) and not queue.try_acquire("e", 1), "nobody overtakes d"


async def test_a_cancelled_request_makes_way_and_keeps_nothing() -> None:
    queue = FairQueue(10)
    await queue.acquire(size=6)
    gone = asyncio.create_task(queue.acquire(size=8))
    behind = asyncio.create_task(queue.acquire(size=4))
    await asyncio.sleep(0)
    gone.cancel()
    await behind
    late = asyncio.create_task(queue.acquire(size=10))
    await asyncio.sleep(0)
    queue.release(size=10)  # granted in the turn of the loop in which it is cancelled
    late.cancel()
    await asyncio.gather(gone, late, return_exceptions=True)
    assert (queue.used, queue.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_callers_of_one_address_run_in_order_even_while_another_one_resumes(seed: int) -> None:
    """A caller that finds a free amount, after an earlier one was granted its own and before it runs."""
    choice, queue, ran, tasks = random.Random(seed), FairQueue(4), list[tuple[str, int]](), []

    async def run(address: str, number: int) -> None:
        async with queue.holding(address):
            ran.append((address, number))
            for _ in range(choice.randrange(4)):
                await asyncio.sleep(0)

    for _ in range(100):
        for _ in range(choice.randrange(3)):
            tasks.append(asyncio.create_task(run(choice.choice(("a", "b", "")), len(tasks))))
            if choice.random() < 0.1:
                asyncio.get_running_loop().call_soon(tasks[-1].cancel)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    for address in ("a", "b", ""):
        numbers = [number for of, number in ran if of == address]
        assert numbers == sorted(numbers)
    assert len(ran) > 50
    assert (queue.used, queue.waiting) == (0, 0) and not queue._resuming


async def test_an_error_in_a_block_releases_what_the_block_holds() -> None:
    quota, queue = Quota(8), FairQueue(8)
    with pytest.raises(LookupError), quota.holding("a", 5):
        raise LookupError
    with pytest.raises(LookupError):
        async with queue.holding("a", 5):
            raise LookupError
    assert quota.used == queue.used == 0


def test_an_address_that_withdraws_a_request_keeps_its_turn() -> None:
    queue, granted = FairQueue(1), list[str]()
    first, second, other = (partial(granted.append, name) for name in ("first", "second", "other"))
    assert queue.try_acquire("c")
    assert not any([queue.request(first, "a"), queue.request(second, "a"), queue.request(other, "b")])
    queue.withdraw(first, "a")
    queue.release("c")
    queue.release("a")
    assert granted == ["second", "other"]


def test_an_error_of_a_granted_request_does_not_stop_later_grants() -> None:
    def fail() -> None:
        raise LookupError

    queue, granted = FairQueue(1), list[str]()
    assert queue.try_acquire()
    queue.request(fail)
    queue.request(partial(granted.append, "later"))
    with pytest.raises(LookupError):
        queue.release()
    queue.release()
    assert granted == ["later"]


@pytest.mark.parametrize("deep", range(6))
async def test_thousands_that_are_cancelled_in_one_step_keep_nothing(deep: int) -> None:
    """As when the connection of a client breaks that has so many calls: the first one releases its own while
    the others have not run yet. (Granted and released one within the other, it was a RecursionError.)"""
    queue = FairQueue(1)
    await queue.acquire("gone")
    waiting = [asyncio.create_task(queue.acquire("gone")) for _ in range(2_000)]
    last = asyncio.create_task(queue.acquire("gone"))
    await asyncio.sleep(0)
    for one in waiting:
        one.cancel()

    def release(depth: int) -> None:
        if depth:
            release(depth - 1)
        else:
            queue.release("gone")

    release(deep)
    await asyncio.wait(waiting)
    await asyncio.wait_for(last, 1)
    assert (queue.used, queue.waiting) == (1, 0)


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B2001:db8::17%5D:4711", "2001:db8::"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:4711", "10.0.0.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::"),
        ("unix:/run/socket", ""),
        ("unknown", ""),
    ],
)
def test_the_client_of_a_call(peer: str, client: str) -> None:
    assert client_of(peer_host(peer)) == client
