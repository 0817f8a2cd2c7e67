"""How fast topics come into being because clients use them."""

from __future__ import annotations

import pytest

from broker_adapter.errors import Busy, Status
from broker_adapter.metadata import creation_limits
from broker_adapter.metadata.creation_limits import CreationLimits
from dledger.infra.quotas import client_of


def limits(most: int = 10_000, each: int = 10_000) -> CreationLimits:
    return CreationLimits("topics", Status.TOO_MANY_TOPICS, most, each)


def taken(limits: CreationLimits, client: str, count: int, now_s: float) -> int:
    """How many of so many are allowed."""
    done = 0
    for n in range(count):
        try:
            limits.count_creation(client, f"{client}-{now_s}-{n}", (), 0, now_s)
        except Busy:
            continue
        done += 1
    return done


def test_one_client_is_slowed_down_and_others_are_not() -> None:
    one = limits()
    assert taken(one, "a", 1_000, 0.0) == 100
    assert taken(one, "b", 10, 0.0) == 10
    assert taken(one, "a", 1_000, 7.0) == 7


def test_many_clients_together_are_slowed_down() -> None:
    one = limits()
    assert sum(taken(one, f"c{n}", 100, 0.0) for n in range(10)) == 500
    assert sum(taken(one, f"d{n}", 100, 10.0) for n in range(10)) == 50


def test_time_that_goes_back_gives_nothing() -> None:
    one = limits()
    assert taken(one, "a", 1_000, 100.0) == 100
    assert taken(one, "a", 1_000, 50.0) == 0


def test_clients_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_limits, "MAX_CLIENTS", 3)
    one = limits()
    for n in range(100):
        taken(one, f"c{n}", 1, 0.0)
    assert len(one._clients) == 3


def test_who_was_heard_of_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_limits, "MAX_CLIENTS", 3)
    one = limits(each=1)
    for client in ("a", "b", "c"):
        one.count_creation(client, client, (client,), 0, 0.0)
    with pytest.raises(Busy):
        one.count_creation("a", "more", ("a",), 0, 0.0)
    one.count_creation("d", "d", ("d",), 0, 0.0)
    with pytest.raises(Busy, match="a has already created"):
        one.count_creation("a", "more", ("a",), 0, 0.0)
    one.count_creation("b", "more", ("b",), 0, 0.0)


def test_the_port_of_a_client_does_not_matter() -> None:
    assert client_of("10.0.0.1:80") == client_of("10.0.0.1:81") == "10.0.0.1"
    assert client_of("[2001:db8::1]:80") == client_of("[2001:db8::2]:80") == "2001:db8::"
    assert client_of("") == ""


@pytest.mark.parametrize(("count", "is_allowed"), [(9, True), (10, False), (11, False)])
def test_the_last_places_are_for_administrators(count: int, is_allowed: bool) -> None:
    one = limits(most=10)
    if is_allowed:
        one.count_creation("a", "T", (), count, 0.0)
        return
    with pytest.raises(Busy):
        one.count_creation("a", "T", (), count, 0.0)
