"""Which runs the files hold, and what in them could not be read."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from chaos.checker.engine import Engine
from chaos.checker.intake import Intake
from chaos.checker.paths import file_of
from chaos.trace.schema import CUTTING, SUFFIX

#: Faults after which a writer may leave half a line.
_KILLS = ", ".join(f"'{kind}'" for kind in CUTTING)


class FileTroubles(NamedTuple):
    """What is wrong with the files of runs, by run, as far as no fault explains it."""

    said: dict[str, list[str]]
    #: Runs that may have lines twice: what was done once then seems to have been done again.
    doubled: frozenset[str]


def file_troubles(engine: Engine, intake: Intake) -> FileTroubles:
    """What cannot be given to a run is given to every run of the directory, or, if that has none, to all."""
    runs_of: dict[Path, set[str]] = defaultdict(set)
    bad: list[tuple[Path, str]] = [
        (path, said) for path, all_said in intake.troubles.items() for said in all_said
    ]
    torn = {file.path.resolve(): file for file in intake.raw if file.torn}
    folders = {file.path.resolve(): file.run_dir for file in intake.raw}
    converted = {file.path.resolve(): file.run_dir for file in intake.parquet}
    folder_of = folders | converted
    killed = {
        (str(row["run"]), target)
        for row in engine.rows(f"SELECT run, targets FROM fault WHERE e = 'begin' AND f IN ({_KILLS})")
        for target in str(row["targets"]).split(",")
    }
    unread: list[tuple[Path, int, str]] = []
    for row in engine.rows(
        "SELECT file, min(run) AS run, max(run) AS run_other, "
        "coalesce(sum(CASE WHEN corrupt THEN n END), 0) AS corrupt, "
        "coalesce(sum(CASE WHEN run IS NULL AND NOT corrupt THEN n END), 0) AS nobody FROM line_counts "
        "GROUP BY file"
    ):
        path = file_of(str(row["file"])).resolve()
        folder = folder_of.get(path, path.parent)
        runs = {str(run) for run in (row["run"], row["run_other"]) if run is not None}
        runs_of[folder] |= runs
        if len(runs) > 1 and path in folders:
            bad.append((folder, f"{path.name} holds lines of several runs"))
        if row["nobody"]:
            bad.append((folder, f"{path.name}: {row['nobody']} lines name no run"))
        if row["corrupt"]:
            unread.append((path, int(row["corrupt"]), folder.as_posix()))
    for path, count, _ in unread:
        folder = folder_of.get(path, path.parent)
        member = path.name.removesuffix(SUFFIX).rpartition(".")[0].partition("-")[2]
        explained = path in torn and count == 1 and any((run, member) in killed for run in runs_of[folder])
        if not explained:
            bad.append((folder, f"{path.name}: {count} lines could not be read"))
    doubled = {run for folder in intake.copied for run in runs_of[folder]}
    raw = set(folders.values())
    for folder in raw | set(converted.values()):
        runs = runs_of[folder]
        if len(runs) > 1 and folder in raw:
            bad.append((folder, f"the directory holds several runs: {', '.join(sorted(runs))}"))
        for other, others in runs_of.items():
            if other != folder:
                doubled |= runs & others
                bad += [(folder, f"run {run} is also in {other}") for run in sorted(runs & others)]
    everyone = set().union(*runs_of.values())
    found: dict[str, list[str]] = defaultdict(list)
    for folder, said in bad:
        for run in sorted(runs_of.get(folder) or everyone):
            found[run].append(said)
    return FileTroubles(dict(found), frozenset(doubled))
