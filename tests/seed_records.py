"""Which seed noticed a planted mistake the last time, so that the search begins there.

A search from seed 0 on takes most of the time of these tests, and tells the same. A recorded seed that
notices nothing any more, because the product or the simulator has changed, costs the whole search. Run the
test with RECORD_SEEDS=1 then: it writes the new seed down.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

import pytest


class _Result(Protocol):
    failure: str | None
    rule: str | None


R = TypeVar("R", bound=_Result)


class SeedRecords:
    """The seeds of one file: `{"mistake": seed}`."""

    def __init__(self, path: Path, most_seeds: int) -> None:
        self._path = path
        self._most = most_seeds

    def find(self, mistake: str, run_seed: Callable[[int], R], about: str | None) -> R:
        """Run seeds until one fails, and return its result; the test fails if none of `most_seeds` does."""
        recorded = self._read().get(mistake)
        first = () if recorded is None else (recorded,)
        for seed in chain(first, (seed for seed in range(self._most) if seed != recorded)):
            result = run_seed(seed)
            if result.failure is not None:
                print(f"{mistake}: found by seed {seed} (recorded: {recorded}), [{result.rule}]")
                if seed != recorded and os.environ.get("RECORD_SEEDS"):
                    self._record(mistake, seed)
                return result
        pytest.fail(f"{mistake} was not noticed in {self._most} seeds: {about}")

    def _read(self) -> dict[str, int]:
        seeds: dict[str, int] = json.loads(self._path.read_text())
        return seeds

    def _record(self, mistake: str, seed: int) -> None:
        with self._path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # other workers record as well
            seeds = {**json.load(file), mistake: seed}
            file.seek(0)
            file.write(json.dumps(dict(sorted(seeds.items())), indent=2) + "\n")
            file.truncate()
