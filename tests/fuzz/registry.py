"""All targets, and their corpus: what is kept in the tree, a folder for each target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.fuzz import (
    targets_broker,
    targets_classic,
    targets_ha,
    targets_log,
    targets_remoting,
    targets_text,
)
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

CORPUS = Path(__file__).parent / "corpus"
TARGETS = {
    target.name: target
    for module in (targets_log, targets_broker, targets_classic, targets_remoting, targets_ha, targets_text)
    for target in module.TARGETS
}
#: Of a target in one go: its inputs depend on the seed and the number of the slice, and on nothing else.
SLICE = 1_000
_VALID = 20


def corpus_of(target: Target) -> list[bytes]:
    """What was kept, sorted by the names of the files."""
    folder = CORPUS / target.name
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def name_of(data: bytes) -> str:
    """Of the file that holds an input."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def inputs(
    target: Target, seed: int, number: int, kept: list[bytes]
) -> Callable[[list[bytes]], Iterator[bytes]]:
    """The inputs of a slice, for `watched.run`. What turns out to be new while it runs is changed further."""

    def make(pool: list[bytes]) -> Iterator[bytes]:
        rng = Random(f"{seed}/{target.name}/{number}")
        pool += kept
        if number == 0:
            yield from kept
        for _ in range(SLICE):
            data = rng.choice(pool) if pool and rng.random() < 0.4 else target.valid(rng)
            others = tuple(pool[:_VALID])
            yield target.repair(mutated(data, rng, text=target.text, others=others))

    return make
