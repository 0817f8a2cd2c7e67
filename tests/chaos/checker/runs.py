"""Run directories that several tests look at: one for each planted defect, and clean ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import duckdb

from chaos.checker.intake import PARQUET_DIR
from chaos.checker.readers.sources import Format, run_directories
from chaos.trace.parquet import convert
from chaos.trace.schema import FIELDS, RAW_DIR, Kind
from tests.chaos.checker.foreign.foreign_cases import CASES, padded, write_history
from tests.chaos.checker.mutations import claim as claim_mutations
from tests.chaos.checker.mutations import classic as classic_mutations
from tests.chaos.checker.mutations import field as field_mutations
from tests.chaos.checker.mutations import group as group_mutations
from tests.chaos.checker.mutations import hostile as hostile_mutations
from tests.chaos.checker.mutations import kind as kind_mutations
from tests.chaos.checker.mutations import membership as membership_mutations
from tests.chaos.checker.mutations import missed as missed_mutations
from tests.chaos.checker.mutations import more as more_mutations
from tests.chaos.checker.mutations import raft as raft_mutations
from tests.chaos.checker.mutations import receive as receive_mutations
from tests.chaos.checker.mutations import request as request_mutations
from tests.chaos.checker.mutations import retention as retention_mutations
from tests.chaos.checker.mutations import sync as sync_mutations
from tests.chaos.checker.mutations import whole as whole_mutations
from tests.chaos.checker.mutations.base import MUTATIONS
from tests.chaos.checker.synthetic import Trace, clean_trace

#: Modules that add to MUTATIONS when they are imported.
assert claim_mutations and classic_mutations and field_mutations and group_mutations
assert hostile_mutations and kind_mutations and missed_mutations and more_mutations
assert raft_mutations and receive_mutations and request_mutations and retention_mutations
assert sync_mutations and whole_mutations and membership_mutations

HISTORIES = Path(__file__).parent / "histories"
#: Unless tests are long: of planted defects; of histories, and of cases. And what tests ask for by name.
SPARK_TAKES_EVERY = 24
SPARK_TAKES_EVERY_HISTORY = 4
NAMED = {"a_late_read_claims_to_know_the_end", "a_node_votes_twice"}
#: Shorter traces have no room for some defects.
ROUNDS = 6
_COLUMN_TYPES = {Kind.INT: "BIGINT", Kind.STR: "VARCHAR", Kind.BOOL: "BOOLEAN"}


def short_trace(run: str, *, broker: bool = True) -> Trace:
    return clean_trace(run, broker=broker, seed=3, rounds=ROUNDS)


def write_mutations(folder: Path) -> list[Path]:
    """A run directory for each mutation, named after it, and one clean one of each kind."""
    found = []
    for mutation in MUTATIONS:
        trace = short_trace(mutation.name, broker=mutation.broker)
        mutation.change(trace)
        trace.write(folder / trace.run)
        found.append(folder / trace.run)
    for broker in (True, False):
        trace = short_trace(f"clean_{broker}", broker=broker)
        trace.write(folder / trace.run)
        found.append(folder / trace.run)
    for name, change in (
        ("clean_receives", receive_mutations.receive_well),
        ("clean_late", receive_mutations.hand_over_late),
        ("clean_one_by_one", receive_mutations.hand_over_one_by_one),
        ("clean_reset", group_mutations.reset_well),
        ("clean_again", receive_mutations.receive_again_with_reason),
        ("clean_kinds", kind_mutations.all_kinds_well),
        (
            "clean_removed_by_size",
            partial(retention_mutations.remove_well, keep_bytes=retention_mutations.KEEP),
        ),
        ("clean_removed_by_age", partial(retention_mutations.remove_well, keep_ms=1_100)),
        ("clean_classic", classic_mutations.lose_master),
        ("clean_members", membership_mutations.demote_well),
        ("clean_hostiles", hostile_mutations.hostile_well),
        ("clean_kill_beside_hostiles", hostile_mutations.killed_beside_hostiles),
    ):
        trace = short_trace(name)
        change(trace)
        trace.write(folder / trace.run)
        found.append(folder / trace.run)
    return found


def for_spark(names: Collection[str], *, everything: bool) -> list[str]:
    """Of the runs of `write_mutations`, those that Spark judges as well: it takes minutes for all of them.
    What the engines differ in is how they read SQL, and each run is asked all of it."""
    clean = {name for name in names if name.startswith("clean_")}
    planted = sorted(set(names) - clean)
    return sorted(clean | NAMED | set(planted[:: 1 if everything else SPARK_TAKES_EVERY]))


def histories_for_spark(names: Collection[str], *, everything: bool) -> list[str]:
    """The same of histories, or of cases."""
    return sorted(names)[:: 1 if everything else SPARK_TAKES_EVERY_HISTORY]


def write_as_parquet(folder: Path) -> list[Path]:
    """Run directories of converted traces of either writer: files that lack a column, and those of the
    product. A run is called as the one of `write_mutations` that it repeats, with PARQUET before it."""
    mutations = {mutation.name: mutation for mutation in MUTATIONS}
    found = []
    for name, convert_run in AS_PARQUET.items():
        mutation = mutations.get(name)
        trace = short_trace(PARQUET + name, broker=mutation is None or mutation.broker)
        if mutation is not None:
            mutation.change(trace)
        elif name == "clean_kinds":
            kind_mutations.all_kinds_well(trace)
        trace.write(folder / trace.run)
        convert_run(folder / trace.run)
        found.append(folder / trace.run)
    return found


def _without_a_column(run_dir: Path) -> None:
    """Parquet instead of raw lines. One of the columns that no line has is left out."""
    names = {name: _COLUMN_TYPES[kind] for name, kind in FIELDS.items() if name != "broker"}
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in names.items())
    (run_dir / PARQUET_DIR).mkdir(parents=True)
    duckdb.execute(
        f"""COPY (SELECT * FROM read_json('{run_dir / RAW_DIR}/*.jsonl', columns = {{{columns}}},
        format = 'newline_delimited')) TO '{run_dir / PARQUET_DIR}/part-0.parquet' (FORMAT parquet)"""
    )
    shutil.rmtree(run_dir / RAW_DIR)


def _as_the_product_does(run_dir: Path) -> None:
    convert(run_dir, remove_raw=True)


#: Before the names of runs that are converted.
PARQUET = "parquet_"
#: What `write_as_parquet` converts, and how.
AS_PARQUET: dict[str, Callable[[Path], None]] = {
    "clean_True": _without_a_column,
    "a_late_read_claims_to_know_the_end": _without_a_column,
    "clean_kinds": _as_the_product_does,
    "a_node_votes_twice": _as_the_product_does,
}


def convert_histories(folder: Path) -> dict[str, Path]:
    """File -> its run directory. Runs are numbered, as files of different kinds have the same name."""
    names = sorted(path.name for path in HISTORIES.iterdir())
    return dict(zip(names, run_directories([HISTORIES / n for n in names], Format.AUTO, folder), strict=True))


def convert_cases(folder: Path) -> dict[str, Path]:
    """Name of the case -> the run directory of its padded history, which is called so."""
    files = {
        name: write_history(folder / "in" / name, case.model, padded(case)) for name, case in CASES.items()
    }
    converted = {}
    for name, file in files.items():
        (converted[name],) = run_directories([file], Format.AUTO, folder / name)
    return converted
