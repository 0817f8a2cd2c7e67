"""What people read on the terminal."""

from __future__ import annotations

import pytest

from dledger.cli.output import counted


@pytest.mark.parametrize(("count", "text"), [(0, "0 queues"), (1, "1 queue"), (2, "2 queues")])
def test_a_count_of_one_is_singular(count: int, text: str) -> None:
    assert counted(count, "queue") == text
