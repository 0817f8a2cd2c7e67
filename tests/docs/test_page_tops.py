"""Each page says at its top whom it is for, and the page on performance stays short."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT

PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_at_its_top_whom_it_is_for(page: str) -> None:
    parts = [part for part in (ROOT / page).read_text().split("\n\n") if not part.startswith("<!--")]
    assert parts[0].startswith("# ")
    assert parts[1].startswith("This page is for "), parts[1][:80]


def test_the_page_on_performance_has_no_history() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert len(text.split()) <= 1_500
    for heading in ("## The log", "## What bounds each", "## How to repeat it"):
        assert heading in text
