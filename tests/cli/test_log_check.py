"""The demo's verdict can be trusted only if it finds what is wrong."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.cli.demo.log_check import Acknowledged, Found, check_log, sha256_of

# Equal lines are in it on purpose: a text has many.
LINES = [b"a", b"", b"a", b"b", b"", b"c"]
# Indexes with gaps, where internal entries are.
ACKED = [Acknowledged(n, 2 * n + 1, body) for n, body in enumerate(LINES, start=1)]
STORED = [Found(a.index, a.body) for a in ACKED]


def test_a_good_log() -> None:
    result = check_log(ACKED, [], STORED)
    assert result.ok
    assert result.entries == len(LINES)
    assert result.sha256 == sha256_of(LINES)
    assert not result.examples


def test_the_checksum_is_that_of_the_text() -> None:
    assert sha256_of([b"a", b"b"]) == hashlib.sha256(b"a\nb\n").hexdigest()


@pytest.mark.parametrize("lost", range(len(STORED)))
def test_a_lost_line(lost: int) -> None:
    result = check_log(ACKED, [], STORED[:lost] + STORED[lost + 1 :])
    assert result.faults == {"missing": 1}
    assert result.examples


def test_a_line_stored_twice() -> None:
    assert check_log(ACKED, [], [*STORED, Found(99, b"b")]).faults == {"duplicated": 1}


def test_an_index_read_twice() -> None:
    assert check_log(ACKED, [], [STORED[0], *STORED]).faults == {"duplicated": 1}


def test_a_line_that_nobody_appended() -> None:
    assert check_log(ACKED, [], [*STORED, Found(99, b"z")]).faults == {"foreign": 1}


def test_altered_lines() -> None:
    swapped = [Found(STORED[0].index, b"b"), *STORED[1:3], Found(STORED[3].index, b"a"), *STORED[4:]]
    assert check_log(ACKED, [], swapped).faults == {"altered": 2}


def test_reading_out_of_order() -> None:
    assert "out of order" in check_log(ACKED, [], STORED[::-1]).faults


def test_acknowledged_out_of_order() -> None:
    """The entries are all there, but a later line has the lower index."""
    acked = [Acknowledged(1, 5, b"a"), Acknowledged(2, 3, b"b")]
    assert check_log(acked, [], [Found(3, b"b"), Found(5, b"a")]).faults == {"out of order": 1}


def test_lines_in_doubt_may_be_there_once_or_not_at_all() -> None:
    assert check_log(ACKED, [b"x"], STORED).ok
    once = check_log(ACKED, [b"x"], [*STORED, Found(98, b"x")])
    assert once.ok
    assert once.in_doubt_found == 1
    twice = check_log(ACKED, [b"x"], [*STORED, Found(98, b"x"), Found(99, b"x")])
    assert twice.faults == {"duplicated": 1}


@settings(deadline=None)  # other work on the machine is not a fault
@given(st.sets(st.integers(0, len(ACKED) - 1)))
def test_forgotten_positions_are_found_between_their_neighbours(forgotten: set[int]) -> None:
    acked = [a._replace(index=-1) if i in forgotten else a for i, a in enumerate(ACKED)]
    assert check_log(acked, [], STORED).ok
    for lost in forgotten:
        assert not check_log(acked, [], STORED[:lost] + STORED[lost + 1 :]).ok


def test_an_empty_log_misses_everything() -> None:
    assert check_log(ACKED, [], []).faults == {"missing": len(ACKED)}
