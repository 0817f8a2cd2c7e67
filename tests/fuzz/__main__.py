"""`make fuzz`: fuzzes decoders and calls for a while, and keeps what it finds. See docs/fuzzing.md."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from tests.fuzz import calls_run, watched
from tests.fuzz.registry import CORPUS, TARGETS, corpus_of, inputs, name_of
from tests.fuzz.target import Target

_MOST_KEPT = 300  # inputs of a target that are changed further
_MOST_SAME = 3  # finds of a target, after which it is left alone


class Fuzzing:
    """Goes round the targets, a slice of each, until its time is over or its rounds are done."""

    def __init__(self, targets: Sequence[Target], seed: int, finds: Path, show: bool) -> None:
        self.count = 0
        self.found: Counter[str] = Counter()
        self._targets = targets
        self._seed = seed
        self._finds = finds
        self._show = show
        self._pools = {target.name: corpus_of(target) for target in targets}

    def round(self, number: int, end_s: float) -> None:
        for target in self._targets:
            if time.monotonic() >= end_s:
                return
            if self.found[target.name] < _MOST_SAME:
                self._slice(target, number)

    def _slice(self, target: Target, number: int) -> None:
        pool = self._pools[target.name]
        done = watched.run(target, inputs(target, self._seed, number, pool))
        self.count += done.inputs
        for find in done.finds:
            self.found[target.name] += 1
            self._tell(find, number)
        known = set(pool)
        self._pools[target.name] = (pool + [one for one in done.kept if one not in known])[:_MOST_KEPT]
        if self._show:
            found = self.found.total()
            text = f"round {number}  {target.name:26}  {self.count:,} inputs  {found} found"
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    def _tell(self, find: watched.Find, number: int) -> None:
        path = self._finds / find.target / name_of(find.data)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(find.data)
        print(f"\nFOUND in {find.target} (seed {self._seed}, round {number}), {len(find.data)} bytes: {path}")
        print(find.problem.rstrip())
        print(f"repeat: make fuzz ARGS='--only {find.target} --file {path}'")
        print(f"keep:   cp {path} {CORPUS / find.target}/", flush=True)


def _repeat(name: str, path: Path) -> bool:
    """One input, or one sequence of calls; whether all is well."""
    if name in calls_run.NAMES:
        with tempfile.TemporaryDirectory() as folder:
            problem = asyncio.run(calls_run.repeat(name, calls_run.read_calls(path), Path(folder)))
        print(problem or f"{name}: as documented")
        return not problem
    target, data = TARGETS[name], path.read_bytes()
    done = watched.run(target, lambda _: iter([data]))
    for find in done.finds:
        print(find.problem.rstrip())
    if not done.finds:
        print(f"{target.name}: {'refused, as documented' if done.refused else 'taken'}")
    return not done.finds


@click.command()
@click.option("--minutes", type=click.FloatRange(0.0), default=5.0, show_default=True, help="When to end.")
@click.option("--rounds", type=click.IntRange(1), help="End after so many rounds, however long they take.")
@click.option("--seed", type=int, help="Repeat the inputs of another run; else one is drawn.")
@click.option("--only", "only", multiple=True, help="A target, or the beginning of some; may be repeated.")
@click.option(
    "--file", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="One input."
)
@click.option(
    "--finds",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/fuzz"),
    show_default=True,
    help="Where to keep what is found.",
)
@click.option("--list", "list_", is_flag=True, help="Name the targets.")
def main(
    minutes: float,
    rounds: int | None,
    seed: int | None,
    only: tuple[str, ...],
    file: Path | None,
    finds: Path,
    list_: bool,
) -> None:
    """Give decoders changed inputs, and servers changed calls, each with a limit of time and of memory.

    Decoders get the first half of the time, calls the second. Exit code 0: nothing found; 1: something, told
    with the command that repeats it; 2: a wrong option. Inputs depend on the seed alone: the same seed with
    the same --only and --rounds does the same. Calls depend on answers too: a find is repeated from its file.
    """
    targets = [t for name, t in TARGETS.items() if not only or name.startswith(only)]
    calls = [name for name in calls_run.NAMES if not only or name.startswith(only)]
    if not targets and not calls:
        raise click.UsageError(f"--only {' '.join(only)}: there is no such target; --list names all")
    if list_:
        print("\n".join([*(target.name for target in targets), *calls]))
        return
    if file is not None:
        exact = {*(target.name for target in targets), *calls} & set(only)
        if len(exact) != 1:
            raise click.UsageError("--file needs --only with the name of one target")
        sys.exit(not _repeat(exact.pop(), file))
    seed = time.time_ns() & 0xFFFF_FFFF if seed is None else seed
    print(f"{len(targets)} decoders, {len(calls)} servers, seed {seed}", flush=True)
    seconds = float("inf") if rounds else 60 * minutes / (2 if targets and calls else 1)
    found = _fuzz_decoders(targets, seed, seconds, rounds, finds) if targets else 0
    if calls:  # after all forks: gRPC has threads
        found += asyncio.run(_fuzz_calls(calls, seed, seconds, rounds, finds))
    sys.exit(bool(found))


def _fuzz_decoders(
    targets: Sequence[Target], seed: int, seconds: float, rounds: int | None, finds: Path
) -> int:
    fuzzing = Fuzzing(targets, seed, finds, sys.stderr.isatty())
    end_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end_s and (rounds is None or number < rounds):
        fuzzing.round(number, end_s)
        number += 1
    found = fuzzing.found.total()
    print(f"\n{fuzzing.count:,} inputs in {number} rounds, seed {seed}: {found or 'nothing'} found")
    return found


async def _fuzz_calls(
    names: Sequence[str], seed: int, seconds: float, rounds: int | None, finds: Path
) -> int:
    async with calls_run.CallFuzzing(names, seed, finds) as fuzzing:
        await fuzzing.run(time.monotonic() + seconds, rounds)
        found = fuzzing.found.total()
        alarms = f", {fuzzing.alarms} alarms of contradicting members" if fuzzing.alarms else ""
        print(f"{fuzzing.count:,} calls, seed {seed}: {found or 'nothing'} found{alarms}")
        return found


if __name__ == "__main__":
    main()
