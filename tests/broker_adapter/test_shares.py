"""Room that clients share: whoever comes next finds some, and whoever needs less keeps that."""

from __future__ import annotations

from broker_adapter.shares import Shares


def test_one_alone_has_half_and_each_further_one_half_of_what_is_left() -> None:
    shares = Shares(100)
    for client, most in (("a", 50), ("b", 25), ("c", 12)):
        assert not shares.replace(client, 0, most + 1)
        assert shares.replace(client, 0, most)
    assert shares.used == 87


def test_less_fits_always_also_for_who_has_more_than_it_would_get_now() -> None:
    """Else what it gives back would count for ever."""
    shares = Shares(100)
    for client, size in (("a", 50), ("b", 25), ("c", 12)):
        assert shares.replace(client, 0, size)
    assert shares.replace("a", 50, 49) and shares.used == 86
    assert not shares.replace("a", 49, 50)
    assert shares.replace("a", 49, 0) and shares.used == 37
    assert shares.replace("d", 0, 31)
