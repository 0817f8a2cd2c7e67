"""Our SQL92 and tag filters against RocketMQ's own classes, on generated expressions and messages."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from broker_adapter.delivery.api import Filter
from broker_adapter.endpoints.filters.filters import filter_from, split_tags
from broker_adapter.endpoints.rejected import Rejected
from tests.broker_adapter.v5 import test_sql92 as tables

from . import genuine

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

SEEDS = (1, 2)
EXPRESSIONS = 10_000
MESSAGES = 48
REFUSED = "refused"
_TIMEOUT_S = 300

_TEXTS = ("a", "b", "ab", "ba", "", "1", "true", "it's", "ü")
_INTEGERS = ("0", "1", "2", "3", "10", "-1", "+3", "007", "99999999999", "9223372036854775807", "٥")
_NUMBERS = (
    "2.0",
    "1.5",
    " 3 ",
    "3d",
    "3f",
    ".5",
    "3.",
    "1e3",
    "1e400",
    "-0.0",
    "0.0",
    "NaN",
    "Infinity",
    "-Infinity",
    "0x1p1",
)
_TRUTHS = ("true", "false", "TRUE", "no")
#: Values of each property.
_PROPERTIES = {
    "s": _TEXTS,
    "i": _INTEGERS,
    "d": (*_NUMBERS, *_INTEGERS),
    "b": _TRUTHS,
    "TAGS": ("a", "b", "a|b", "*"),
}
_STRINGS = ("'a'", "'b'", "'1'", "'true'", "''", "'it''s'", "'ü'", "'a--b'", "'/*'")
_LITERALS = (
    *("0", "1", "2", "3", "3L", "10l", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("2.0", "1.5", ".5", "3.", "1e3", "1.5E-1", "1e400", "1e-400", "TRUE", "false", "NULL"),
    *("3d", "0x10", "010", "'a'", "'2'"),
)
#: Also words that end an expression early, or make it invalid.
_NOISE = (
    "b",
    ")",
    "(",
    ";",
    "NOT",
    "AND",
    "-- x",
    "-- x\n",
    "/* x */",
    "/* x",
    "is",
    "null",
    ",",
    "'",
    "=",
    "like",
    "!",
    "é",
)


def operand(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        return rng.choice("sidb")
    if kind < 0.9:
        return rng.choice(_LITERALS)
    if kind < 0.95:
        return rng.choice("+-") + operand(rng)
    return f"({condition(rng, 3)})"


def strings(rng: Random) -> str:
    between = rng.choice((",", ", ", " /* ' */ , "))
    return f"({between.join(rng.choices(_STRINGS, k=rng.randint(1, 6)))})"


def comparison(rng: Random) -> str:
    negation = rng.choice(("", "NOT "))
    match rng.randrange(8):
        case 0:
            return operand(rng)
        case 1:
            return f"{operand(rng)} IS {negation}NULL"
        case 2:
            return f"{rng.choice('sidb')} {negation}IN {strings(rng)}"
        case 3:
            return f"{operand(rng)} {negation}BETWEEN {operand(rng)} AND {operand(rng)}"
        case 4:
            word = rng.choice(("CONTAINS", "startswith", "EndsWith"))
            return f"{operand(rng)} {negation}{word} {rng.choice(_STRINGS)}"
    return f"{operand(rng)} {rng.choice(('=', '<>', '>', '>=', '<', '<='))} {operand(rng)}"


def condition(rng: Random, depth: int = 0) -> str:
    if depth > 3 or rng.random() < 0.35:
        return comparison(rng)
    left = condition(rng, depth + 1)
    match rng.randrange(6):
        case 0 | 1:
            return f"{left} AND {condition(rng, depth + 1)}"
        case 2 | 3:
            return f"{left} OR {condition(rng, depth + 1)}"
        case 4:
            return f"NOT ({left})"
    return rng.choice((f"({left})", f"NOT {left}", f"{left} = TRUE", f"{left} IS NULL"))


def expression(rng: Random) -> str:
    """One in five has a word too many, too few or in the wrong place."""
    text = condition(rng)
    if rng.random() < 0.8:
        return text
    words = text.split(" ")
    at = rng.randrange(len(words) + 1)
    words[at : at + rng.choice((0, 1))] = rng.choices(_NOISE, k=rng.choice((0, 1, 1)))
    return rng.choice((" ", " ", "\n", "\t /**/")).join(words)


def message(rng: Random) -> dict[str, str]:
    return {name: rng.choice(values) for name, values in _PROPERTIES.items() if rng.random() < 0.7}


def tag_expression(rng: Random) -> str:
    parts = rng.choices(("a", "b", "a|b", "*", "", "c"), k=rng.randint(1, 4))
    return "".join(rng.choice(("", " ")) + part + rng.choice(("", " ", "||", "|| ")) for part in parts)


def ask_rocketmq(
    folder: Path, messages: Sequence[Mapping[str, str]], kind: str, expressions: Iterable[str]
) -> list[str]:
    """One line for each expression: `refused`, or T, F, N (NULL) or X (throws) for each message."""
    lines = [" ".join(["M", *(_encoded(text) for pair in one.items() for text in pair)]) for one in messages]
    lines += [f"{kind} {_encoded(one)}" for one in expressions]
    command = genuine.java_program(folder, "Filters")
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
    )
    return [line[2:] for line in done.stdout.splitlines() if line.startswith("@ ")]


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def our_filter(text: str, kind: str) -> Filter | None:
    try:
        return filter_from(text, "SQL92" if kind == "S" else "TAG")
    except Rejected:
        return None


@pytest.mark.parametrize("seed", SEEDS)
def test_sql92_selects_the_messages_that_rocketmq_selects(seed: int, tmp_path: Path) -> None:
    """Where RocketMQ's evaluator throws, ours may select the message (docs/deviations.md)."""
    genuine.require()
    rng = Random(seed)
    messages = [{}, *(message(rng) for _ in range(MESSAGES - 1))]
    expressions = [expression(rng) for _ in range(EXPRESSIONS)]
    answers = ask_rocketmq(tmp_path, messages, "S", expressions)
    seen = Counter[str]()
    for text, answer in zip(expressions, answers, strict=True):
        ours = our_filter(text, "S")
        is_refused = answer == REFUSED
        seen["refused" if is_refused else "accepted"] += 1
        assert (ours is None) == is_refused, text
        if ours is None:
            continue
        assert ours.matches is not None
        for properties, result in zip(messages, answer, strict=True):
            seen[result] += 1
            is_selected = ours.matches(properties)
            assert result == "X" or is_selected == (result == "T"), (text, properties, result)
    assert min(seen[what] for what in ("accepted", "refused", *"TFNX")) > EXPRESSIONS // 20, seen


@pytest.mark.parametrize("seed", SEEDS)
def test_tags_select_the_messages_that_rocketmq_selects(seed: int, tmp_path: Path) -> None:
    """Without a tag, or with `*` alone, ours selects all messages, RocketMQ none (docs/deviations.md)."""
    genuine.require()
    rng = Random(seed)
    tags = ("a", "b", "a|b", "*", "|", "a b", "c")
    messages: list[dict[str, str]] = [{}, *({"TAGS": tag} for tag in tags)]
    expressions = ["*", *(tag_expression(rng) for _ in range(EXPRESSIONS // 10))]
    answers = ask_rocketmq(tmp_path, messages, "T", expressions)
    seen = Counter[bool]()
    for text, answer in zip(expressions, answers, strict=True):
        ours = our_filter(text, "T")
        assert ours is not None, text
        selected = [not ours.tags or one.get("TAGS") in ours.tags for one in messages]
        is_unnamed = set(split_tags(text)) <= {"*"}
        seen[is_unnamed] += 1
        if is_unnamed:
            assert all(selected), text
        else:
            assert selected == [result == "T" for result in answer], text
    assert min(seen[True], seen[False]) > 10


def test_the_tables_of_the_unit_tests_are_rocketmqs(tmp_path: Path) -> None:
    genuine.require()
    rows = [*tables.MATCHING, *tables.NOT_MATCHING]
    messages = [properties for _, properties in rows]
    answers = ask_rocketmq(tmp_path, messages, "S", [text for text, _ in rows])
    results = [answer[at] for at, answer in enumerate(answers)]
    selected = [text for (text, _), result in zip(rows, results, strict=True) if result == "T"]
    assert selected == [text for text, _ in tables.MATCHING]
    assert "X" not in results, [
        text for (text, _), result in zip(rows, results, strict=True) if result == "X"
    ]
    assert ask_rocketmq(tmp_path, [], "S", tables.REFUSED) == [REFUSED] * len(tables.REFUSED)
