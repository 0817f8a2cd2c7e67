"""How addresses share places: one alone, many, those that come last."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dledger.shares import SharedPlaces, client_of, peer_host


def places(most: int) -> SharedPlaces:
    return SharedPlaces(most, "streams are open", "close some")


def filled(shared: SharedPlaces, address: str) -> int:
    """Take all that the address gets; how many."""
    count = 0
    while shared.refusal(address) is None:
        shared.take(address)
        count += 1
    return count


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 8, 100, 256, 1024])
def test_one_address_alone_leaves_a_quarter(most: int) -> None:
    assert filled(places(most), "10.0.0.1") == most - most // 4


def test_who_has_none_gets_a_place_as_long_as_there_is_one() -> None:
    shared, got = places(256), []
    while (count := filled(shared, f"10.0.0.{len(got)}")) > 0:
        got.append(count)
    assert got == sorted(got, reverse=True) and got[:3] == [192, 48, 12]
    assert sum(got) == shared.taken == 256


def test_an_address_gets_no_more_than_its_share_of_what_others_leave() -> None:
    shared = places(100)
    for address in ("a", "b"):
        for _ in range(20):
            assert shared.refusal(address) is None
            shared.take(address)
    assert 20 + filled(shared, "a") == 60  # three quarters of the 80 that b leaves
    for _ in range(20):
        shared.give_back("b")
    assert 60 + filled(shared, "a") == 75


def test_who_has_no_address_shares_with_nobody() -> None:
    assert filled(places(8), "") == 8


def test_what_ends_is_given_back_to_the_last() -> None:
    shared = places(4)
    for _ in range(2):
        with ExitStack() as stack:
            for _ in range(3):
                assert shared.refusal("a") is None
                stack.enter_context(shared.taking("a"))
            assert shared.refusal("a") is not None
        assert shared.taken == 0 and not shared._of


def test_a_refusal_says_who_has_what_and_what_to_do() -> None:
    shared = places(4)
    filled(shared, "10.0.0.1")
    assert shared.refusal("10.0.0.1") == (
        "3 of 4 streams are open for 10.0.0.1, which leaves the rest to others; close some"
    )
    filled(shared, "10.0.0.2")
    assert shared.refusal("10.0.0.3") == "4 streams are open; close some"


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
