"""Every decoder is fuzzed; what was kept is no find any more; and the fuzzer finds what it is for."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from tests.fuzz import calls_run, watched
from tests.fuzz.mutation import mutated
from tests.fuzz.registry import CORPUS, TARGETS, corpus_of, inputs
from tests.fuzz.rule import EXCEPTIONS, decoders
from tests.fuzz.target import Target

_SEEDS = 30
#: So few changes make something that these refuse that some dozens of inputs have none.
_SELDOM = {"checkpoint", "heartbeat-response", "position-request", "pull-response", "take-leadership"}


def test_every_decoder_of_the_product_has_a_target_or_a_reason() -> None:
    found = set(decoders())
    assert len(found) > 80
    covered = {name for target in TARGETS.values() for name in target.covered}
    assert not (missing := found - covered - set(EXCEPTIONS)), (
        f"no target in tests/fuzz covers {sorted(missing)}: add one, or a reason to tests/fuzz/rule.py"
    )
    assert not (gone := set(EXCEPTIONS) - found), f"exceptions for what is not there: {sorted(gone)}"


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    folders = {path.name for path in CORPUS.iterdir()}
    assert folders <= {*TARGETS, *calls_run.NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_taken_and_run_through_what_the_target_covers(name: str) -> None:
    target, rng, called = TARGETS[name], Random(7), set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    taken = 0
    for _ in range(_SEEDS):
        data = target.repair(target.valid(rng))
        sys.setprofile(note)
        try:
            taken += target.takes(data)
        finally:
            sys.setprofile(None)
    assert taken
    assert not [one for one in target.covers if _code_of(one) not in called]


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_that_were_kept_are_taken_for_ever(name: str) -> None:
    kept = sorted((CORPUS / name).glob("valid-*"))
    assert kept and all(TARGETS[name].takes(path.read_bytes()) for path in kept)


def _code_of(function: Callable[..., Any]) -> Any:
    return getattr(function, "__func__", function).__code__


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_what_was_kept_and_some_changed_inputs_are_taken_or_refused(name: str) -> None:
    target, kept = TARGETS[name], corpus_of(TARGETS[name])

    def some(pool: list[bytes]) -> Iterator[bytes]:
        made = inputs(target, 20260101, 0, kept)(pool)
        for _, data in zip(range(len(kept) + 60), made, strict=False):
            yield data

    done = watched.run(target, some)
    assert not done.finds, "\n".join(f"{find.data[:200]!r}\n{find.problem}" for find in done.finds)
    assert done.inputs >= 60
    assert done.refused < done.inputs
    assert bool(done.refused) == bool(target.refusals) or name in _SELDOM, "what its docstring names happens"


# -- the fuzzer itself


def _planted(decode: Callable[[bytes], object]) -> Target:
    return Target("planted", lambda rng: b"valid", decode, (), (KeyError,))


def _grows(_: bytes) -> None:
    bytearray(2 * watched.MEMORY_BYTES)


def _spins(_: bytes) -> None:
    while True:
        pass


def _spins_in_c(_: bytes) -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


@pytest.mark.parametrize(
    ("decode", "problem"),
    [
        (_grows, "MiB of memory"),
        (_spins, "more than"),
        (_spins_in_c, "more than"),
        (lambda data: data[99], "IndexError"),
        (lambda _: sys.exit(3), "ended"),
    ],
)
def test_what_a_decoder_must_not_do_is_found(
    decode: Callable[[bytes], object], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "LIMIT_S", 0.2)
    (find,) = watched.run(_planted(decode), lambda _: iter([b"data"])).finds
    assert problem in find.problem and find.data == b"data"


def test_a_documented_refusal_is_no_find() -> None:
    done = watched.run(_planted(lambda data: {}[data]), lambda _: iter([b"a", b"b"]))
    assert (done.inputs, done.refused, done.finds) == (2, 2, [])
    assert done.kept == [b"a"], "the second one went the same way"


def test_the_same_seed_makes_the_same_inputs() -> None:
    def made(name: str, seed: int) -> list[bytes]:
        return list(inputs(TARGETS[name], seed, 0, [])([]))

    for name in ("hard-state", "record", "sql92", "vote-request"):
        assert made(name, 1) == made(name, 1) != made(name, 2)


def test_changes_of_a_text_and_of_bytes_differ_from_it_mostly() -> None:
    rng = Random(1)
    for text in (False, True):
        changed = [mutated(b"a = 1, b = 2", rng, text=text) for _ in range(200)]
        assert len(set(changed)) > 150


@pytest.mark.slow
def test_a_run_by_command_tells_a_find_and_how_to_repeat_it(tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.fuzz", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=CORPUS.parents[2])

    quiet = run("--only", "host", "--rounds", "1", "--seed", "5", "--finds", str(tmp_path))
    assert quiet.returncode == 0 and "nothing found" in quiet.stdout, quiet.stdout + quiet.stderr
    seed = tmp_path / "one"
    seed.write_bytes(b"10.0.0.1:1")
    assert run("--only", "host", "--file", str(seed)).stdout == "host: taken\n"
    assert run("--only", "none").returncode == 2
