"""Words: terms of docs/glossary.md are in use, and words that were replaced do not come back.

docs/glossary.md has one meaning for a term. GONE and TO_GO are words that hid what they named: a private word
costs every later reader a search.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache

import pytest

from tests.docs.pages import HISTORY, ROOT

GLOSSARY = "docs/glossary.md"
_OURS = "tests/docs/test_words.py"
_GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$|^docs/reference/")

#: No file has them. What to say: CpuWakeLock, CatchUpThrottle, PageCacheRelease, JobQueue, SendQueue, repair,
#: expensive, rarely, "the attempt number", normally, automatically,
#: Impairment, proxy, duplicate, Position, DuplicateFilter, AdmissionQueue, BitFlips, invisible_until_ms.
GONE = (
    "Vigil",
    "YieldingPace",
    "yielding",
    "late_bytes",
    "LateBytes",
    "Stage",
    "ThreadStage",
    "Lane",
    "mend",
    "mended",
    "dear",
    "seldom",
    "seldomer",
    "how many-th",
    "that which",
    "one would want",
    "does by itself",
    "as ever",
    "Trouble",
    "trouble",
    "Place",
    "SentIds",
    "sent_ids",
    "Parking",
    "parking",
    "Flips",
    "until_ms",
    "messaging",
    "repetition",
    "by itself",
    "by themselves",
    "spoil",
)

#: How many files have them. A number may only get smaller; at 0 the word moves to GONE.
TO_GO = {
    "held": 49,  # in flight, invisible, delayed, ...
}


@cache
def texts() -> dict[str, str]:
    """Python files and pages that people write, by path."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = (path for path in listed.stdout.split() if path not in (_OURS, HISTORY))
    return {path: (ROOT / path).read_text() for path in paths if not _GENERATED.search(path)}


@cache
def lowered() -> dict[str, str]:
    return {path: text.lower() for path, text in texts().items()}


def files_with(word: str) -> list[str]:
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    return [path for path, text in texts().items() if word in text and pattern.search(text)]


def terms() -> dict[str, str]:
    """Meaning by term."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", (ROOT / GLOSSARY).read_text(), re.MULTILINE)
    return {term: meaning for term, meaning in rows if term != "term"}


def test_terms_are_in_order_and_have_one_meaning_in_one_line() -> None:
    text = (ROOT / GLOSSARY).read_text()
    assert len(terms()) > 35
    for section in text.split("\n## ")[1:]:
        rows = [
            row for row in re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE) if row not in ("term", "---")
        ]
        assert rows == sorted(rows, key=str.lower)
    assert max(map(len, terms().values())) < 170


@pytest.mark.parametrize("term", terms())
def test_a_term_is_used(term: str) -> None:
    used = [path for path, text in lowered().items() if path != GLOSSARY and term.lower() in text]
    assert len(used) >= 2, used


@pytest.mark.parametrize("word", GONE)
def test_words_that_are_gone_stay_gone(word: str) -> None:
    assert files_with(word) == []


@pytest.mark.parametrize("word", TO_GO)
def test_words_that_are_to_go_only_get_fewer(word: str) -> None:
    found = len(files_with(word))
    assert found <= TO_GO[word], f"say something else; {sorted(files_with(word))}"
    assert found > 0, "gone: move it to GONE"


def test_a_word_is_found() -> None:
    assert GLOSSARY in files_with("witness")
    assert files_with("wit" + "nesss") == []
