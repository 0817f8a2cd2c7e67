"""The short part, inside `make test`: messages of a released client there and back."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Run

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-first")]


@pytest.fixture
def client() -> str:
    return "python"


def test_the_python_client_gets_back_what_it_sends(run: Run) -> None:
    seen = run("normal")
    assert len(seen["sent"]) == 20 and seen["received"] == seen["sent"]
    assert seen["attempts"] == [1] and not seen["left"]
