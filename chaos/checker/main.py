"""`dledger-check`: check one or more runs with Spark, print the verdict, and write a report."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Check, Severity
from chaos.checker.command.ending import (
    TerminationRequest,
    WorkFolderError,
    signals_raise,
    termination_message,
    work_folder,
)
from chaos.checker.command.output import end_quietly, plain, write_error, write_result
from chaos.checker.engine import Engine, EngineError
from chaos.checker.engines.java import JavaNotFound
from chaos.checker.intake import Intake, IntakeError, inspect_runs
from chaos.checker.judge import CheckVerdict, RunJudgment, judge
from chaos.checker.needs import NEEDS, Need
from chaos.checker.paths import file_of, shown
from chaos.checker.readers.history import ReaderError
from chaos.checker.readers.sources import Format, run_directories
from chaos.checker.reporting.figures import Measurements, measure_runs
from chaos.checker.reporting.report import (
    PAGE,
    ForeignReportError,
    as_json,
    overall,
    summary_line,
    terminal_lines,
    write_junit,
    write_report,
)
from chaos.checker.tables import make_tables
from chaos.trace.schema import CUTTING, RAW_DIR, SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT = {CheckVerdict.VALID: 0, CheckVerdict.INVALID: 1, CheckVerdict.UNKNOWN: 2}
EXIT_ARGUMENTS, EXIT_CRASH, EXIT_INTERRUPTED = 254, 255, 130
#: Pause between two checks with --follow, in seconds.
PAUSE_S = 1.0
#: Function that loads traces into an engine.
Load = Callable[[Intake], Engine]
#: Callback for the results, called as soon as they are available.
OnResults = Callable[[list[RunJudgment]], None]
#: Subdirectory of the directory for tables with the converted histories of other systems.
CONVERTED_DIR = "converted"
PROGRESS_AFTER_S = 20
_SILENT = logging.NullHandler()


class _Command(click.Command):
    """Command that reports each failure as one line, with a remedy and an exit code."""

    def invoke(self, ctx: click.Context) -> int:
        try:
            with signals_raise():
                return int(super().invoke(ctx))
        except (click.exceptions.Exit, click.Abort, KeyboardInterrupt):
            raise
        except TerminationRequest as ended:
            write_error(termination_message(ended))
            return ended.code
        except Exception as error:
            if ctx.params["debug"]:
                write_error(error.details if isinstance(error, EngineError) else traceback.format_exc())
            return _fail(error)


def _fail(error: Exception) -> int:
    """Print the error and return the exit code."""
    if isinstance(error, (click.ClickException, IntakeError, ReaderError, WorkFolderError)):
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        write_error(f"error: {plain(message)}")
        return EXIT_ARGUMENTS
    if isinstance(error, JavaNotFound):
        write_error(f"error: {error}")
        return EXIT_CRASH
    message = str(error) if isinstance(error, (EngineError, OSError)) else f"{type(error).__name__}: {error}"
    write_error(
        f"error: {plain(message)}\n"
        "the checker itself failed; this is no verdict on the run (--debug prints a traceback)"
    )
    return EXIT_CRASH


@click.command(cls=_Command)
@click.version_option(package_name="dledger", message="%(package)s %(version)s")
@click.argument("paths", nargs=-1, required=True, metavar="RUN_DIR|FILE...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Report directory. [default: RUN_DIR/report, or FILE-report]",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice([one.value for one in Format]),
    default=Format.AUTO.value,
    show_default=True,
    help="Input format: chaos traces, Jepsen histories, or Porcupine logs.",
)
@click.option("--master", help="Spark master URL. [default: from spark-submit, else local[*]]")
@click.option(
    "--memory",
    callback=lambda context, option, given: check_memory_size(given),
    help="Heap of a local driver. [default: 2g; 4g from 8 GiB of lines]",
)
@click.option(
    "--checks", "names", help="Comma-separated ids of checks; checks of the trace itself always run."
)
@click.option("--work", type=click.Path(path_type=Path), help="Directory for tables, shared by all workers.")
@click.option(
    "--follow", "watch", is_flag=True, help="Check runs in progress, and stop at the first violation."
)
@click.option(
    "--patience",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="With --follow: seconds without new lines after which a run is over.",
)
@click.option("--json", "as_text", is_flag=True, help="Print results.json instead of the verdict.")
@click.option("--junit", type=click.Path(path_type=Path), help="Also write JUnit XML to this file.")
@click.option("--debug", is_flag=True, help="Print a traceback with an error.")
def command(
    paths: tuple[Path, ...],
    out: Path | None,
    format_: str,
    master: str | None,
    memory: str | None,
    names: str | None,
    work: Path | None,
    watch: bool,
    patience: int,
    as_text: bool,
    junit: Path | None,
    debug: bool,
) -> int:
    """Check the traces of runs and print a verdict for each run.

    \b
    Examples:
      dledger-check /tmp/runs/leader-kill
      dledger-check history.edn --format jepsen --out /tmp/report

    Exit codes: 0 valid, 1 invalid, 2 unknown, 254 bad arguments, 255 the checker itself failed.
    """
    started = time.monotonic()
    checks = select_checks(names)
    out = out or default_out(paths[0])

    def on_results(results: list[RunJudgment]) -> None:
        if not as_text:
            write_result(
                "\n".join(
                    [*(line for result in results for line in terminal_lines(result)), summary_line(results)]
                )
            )

    with work_folder(work) as folder:
        run_dirs = run_directories(paths, Format(format_), folder / CONVERTED_DIR)
        with spark_loader(folder, master=master, memory=memory, growing=watch) as load:
            if watch:
                intake, results, figures = watch_runs(load, run_dirs, checks, patience, on_results)
            else:
                intake = inspect_runs(run_dirs)
                results, figures = check_loaded(load(intake), intake, checks, on_results)
        seconds = time.monotonic() - started
        report = as_json(results, figures, intake, seconds)
    if as_text:
        write_result(json.dumps(report, indent=1, default=str))
    is_written = _written(out, "--out", lambda: write_report(out, results, figures, report))
    if is_written and not as_text:
        write_result(f"report: {out / PAGE}")
    if junit is not None:
        _written(junit, "--junit", lambda: write_junit(junit, results))
    return EXIT[overall(results)]


def _written(path: Path, option: str, write: Callable[[], object]) -> bool:
    """Write a report and return True. A failure is printed and does not change the verdict."""
    try:
        write()
    except (OSError, ForeignReportError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        write_error(
            f"error: cannot write the report to {plain(shown(path))}: {reason}; the verdict and the exit "
            f"code stand. Use another location ({option})"
        )
        return False
    return True


def default_out(path: Path) -> Path:
    """Return the default report directory for a run directory or a history file."""
    return path.with_name(f"{path.name}-report") if path.is_file() else path / "report"


def check_memory_size(text: str | None) -> str | None:
    """Validate a memory size in the JVM's notation.

    Raises:
        click.BadParameter: the size is invalid.
    """
    if text is not None and not re.fullmatch("[1-9][0-9]*[kmgtKMGT]", text, re.ASCII):
        raise click.BadParameter(f"{text!r} is not a size like 512m or 4g")
    return text


def select_checks(names: str | None) -> tuple[Check, ...]:
    """Return the checks with these ids, and the checks of the trace itself.

    Raises:
        click.BadParameter: an id is unknown.
    """
    if names is None:
        return CHECKS
    selected = {name.strip() for name in names.split(",")}
    if unknown := selected - {check.id for check in CHECKS}:
        raise click.BadParameter(f"unknown checks: {', '.join(sorted(unknown))}")
    return tuple(check for check in CHECKS if check.id in selected or check.severity is Severity.VOID)


@contextmanager
def spark_loader(work_dir: Path, *, master: str | None, memory: str | None, growing: bool) -> Iterator[Load]:
    """Provide a function that loads traces into Spark, which runs from the first call until exit.

    `growing`: later loads may be much larger than the first one.

    Raises:
        EngineError: Spark failed.
    """
    # Spark is an optional dependency, which only a check requires.
    try:
        from chaos.checker.engines.spark import SparkEngine, end, heap_for, is_quick, start
    except ImportError as error:
        raise click.ClickException(
            f"Spark is not installed ({error}); run: pip install 'dledger[checker]'"
        ) from error

    sessions: list[SparkSession] = []

    def load(intake: Intake) -> Engine:
        if not sessions:
            quick = is_quick(intake) and not growing
            heap = memory or heap_for(intake)
            sessions.append(start(work_dir, master=master, memory=heap, quick=quick, archived=True))
        # Each load has its own tables, which replace the previous ones.
        tables = work_dir / "tables"
        shutil.rmtree(tables, ignore_errors=True)
        engine = SparkEngine(sessions[0], tables)
        started = time.monotonic()
        engine.load(intake)
        took = time.monotonic() - started
        write_error(f"read {sum(file.bytes for file in intake.raw)} bytes of lines in {took:.1f} s")
        return engine

    def stop(whole: bool) -> None:
        for session in sessions:
            end(session, whole=whole)

    try:
        yield load
    except (click.ClickException, IntakeError, ReaderError, JavaNotFound):
        stop(whole=False)
        raise
    except Exception as error:
        # Spark fetches the texts of its errors from the JVM, so read them before the JVM ends.
        failed = translate_error(str(error), "".join(traceback.format_exception(error)), str(work_dir.parent))
        stop(whole=False)
        raise failed from None
    except BaseException:
        stop(whole=False)
        raise
    stop(whole=True)


def watch_runs(
    load: Load, run_dirs: Sequence[Path], checks: tuple[Check, ...], patience: int, on_results: OnResults
) -> tuple[Intake, list[RunJudgment], dict[str, Measurements]]:
    """Check runs in progress until a guarantee is violated or they end; then run all checks.

    Raises:
        IntakeError: no line was ever written.
    """
    newest: list[tuple[Intake, Engine]] = []

    def look() -> list[RunJudgment]:
        intake = inspect_runs(list(run_dirs))
        engine = load(intake)
        newest[:] = [(intake, engine)]
        make_tables(engine)
        return judge(engine, WATCHED)

    outcome = follow(run_dirs, look, lambda: time.sleep(PAUSE_S), patience=round(patience / PAUSE_S))
    if outcome.broken is not None:
        write_error(f"violation found in round {outcome.looks}")
        intake, engine = newest[0]
        on_results(outcome.broken)
        return intake, outcome.broken, _figures(engine)
    intake = inspect_runs(list(run_dirs))
    return intake, *check_loaded(load(intake), intake, checks, on_results)


def check_loaded(
    engine: Engine, intake: Intake, checks: tuple[Check, ...], on_results: OnResults = lambda _: None
) -> tuple[list[RunJudgment], dict[str, Measurements]]:
    """Judge the loaded traces, and report the verdict before computing the measurements.

    Raises:
        IntakeError: no line is readable.
    """
    started = time.monotonic()
    shown = ""

    def progress(what: str, done: int, total: int) -> None:
        nonlocal shown
        line = f"{what}: {done} of {total} done"
        # Show progress only in long checks.
        if line != shown and time.monotonic() - started > PROGRESS_AFTER_S:
            shown = line
            write_error(line)

    make_tables(engine, partial(progress, "tables"))
    troubles = file_troubles(engine, intake)
    results = judge(
        engine,
        checks,
        troubles=troubles.said,
        doubled=troubles.doubled,
        on_progress=partial(progress, "checks"),
    )
    if not results:
        raise IntakeError("the trace has no readable lines")
    on_results(results)
    return results, _figures(engine)


def _figures(engine: Engine) -> dict[str, Measurements]:
    """Return the measurements of all runs. They do not affect verdicts, so a failure is only reported."""
    try:
        return measure_runs(engine)
    except Exception as error:
        reason = plain(" ".join(str(error).split())[:300])
        write_error(f"error: cannot compute the measurements of the report: {reason}")
        return {}


def main() -> None:
    """The console script."""
    # py4j logs the calls that the end of the JVM interrupts; suppress that.
    logging.getLogger().addHandler(_SILENT)
    try:
        code = command.main(standalone_mode=False)
    except click.ClickException as error:
        code = _fail(error)
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except SystemExit:
        # click exits this way if the reader of its help has closed the pipe.
        end_quietly()
        code = 0
    sys.exit(code)


_FULL = os.strerror(errno.ENOSPC)
_HEAP = "OutOfMemoryError"
#: Spark's messages for a truncated or damaged file, with the file name.
_DAMAGED = re.compile(
    r"(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)\S*\].*?file:? ?(\S+?)\.?(?:\s|$)", re.DOTALL
)
#: Markers that end the useful part of Java's and Spark's messages.
_ENDS = re.compile(r"\n\s*at |\nJVM stacktrace|\nDriver stacktrace|\n== SQL|SQLSTATE: \w+")
_MAX_CHARACTERS = 300


def translate_error(message: str, details: str, work: str) -> EngineError | IntakeError:
    """Translate an exception of Spark into the error to raise.

    `message`: text of the exception; `details`: its traceback; `work`: directory for tables.
    """
    if _FULL in details:
        return EngineError(f"no space left for tables in {work}; use another directory (--work)", details)
    if damaged := _DAMAGED.search(details):
        return IntakeError(
            f"{file_of(damaged[1])} is damaged and cannot be read; this is no verdict on its run"
        )
    if _HEAP in details:
        return EngineError("out of heap memory; increase it, for example with --memory 4g", details)
    short = " ".join(_ENDS.split(message)[0].split())
    return EngineError(short[:_MAX_CHARACTERS], details)


# Following a run: repeated checks of the lines written so far, until a violation is found or the run ends.
#
# Complete lines of a growing file are final. The lines of one writer are a prefix of its trace, but the files
# of different writers end at different moments. Therefore only monotone checks are repeated: their violations
# consist of existing lines, and no later line removes one. Other checks would raise false alarms.

#: Monotone checks. Excluded: L2 (a completion may still report a retry), R12 (a truncation may still be
#: reported), C3 and S9 (lines of another consumer may explain a violation), A5 (the answer may still arrive).
MONOTONE = (
    *("L1", "L5", "L7", "L8", "L9", "L10", "L11", "P3"),
    *("R1", "R2", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R13", "R19", "R20"),
    *("S1", "S3", "S4", "S11", "S12", "A6", "C11"),
)
#: Met as soon as every expected writer has ended or was killed.
_ALL_WRITTEN = "W7"
#: Assumed during a run: the files of all node processes are present. Only the end of the run shows how many
#: there were. The other needs of `MONOTONE` can be decided for a prefix.
ASSUMED = frozenset({Need.LIVES})
_NEEDED = {spec.by for spec in NEEDS.values() if spec.from_prefix}
WATCHED = tuple(check for check in CHECKS if check.id in {*MONOTONE, _ALL_WRITTEN, *_NEEDED})


@dataclass(frozen=True, slots=True)
class FollowResult:
    """Result of following runs. `broken`: the violations, or None if the runs ended or wrote nothing for too
    long."""

    broken: list[RunJudgment] | None
    looks: int


def follow(
    run_dirs: Sequence[Path],
    look: Callable[[], list[RunJudgment]],
    pause: Callable[[], None],
    *,
    patience: int,
) -> FollowResult:
    """Call `look` at the start and after each pause during which lines were written.

    `look` judges `WATCHED` on the lines written so far. After `patience` pauses without new lines the run is
    considered over.
    """
    looks, quiet, seen = 0, 0, -1
    while quiet < patience:
        written = bytes_of(run_dirs)
        if written == seen or not written:
            quiet += 1
        else:
            quiet, seen, looks = 0, written, looks + 1
            results = look()
            if any(result.verdict is CheckVerdict.INVALID for result in results):
                return FollowResult(results, looks)
            if results and all(_is_written(result) for result in results):
                return FollowResult(None, looks)
        pause()
    return FollowResult(None, looks)


def bytes_of(run_dirs: Sequence[Path]) -> int:
    """Return the total size of the files of all runs."""
    files = (path for run_dir in run_dirs for path in (run_dir / RAW_DIR).glob(f"*{SUFFIX}"))
    return sum(path.stat().st_size for path in files)


def _is_written(result: RunJudgment) -> bool:
    return not any(f.violations for f in result.findings if f.check.id == _ALL_WRITTEN)


#: Faults after which a writer may leave an incomplete last line.
_KILLS = ", ".join(f"'{kind}'" for kind in CUTTING)


class FileTroubles(NamedTuple):
    """For each run, the defects of its files that no fault explains."""

    said: dict[str, list[str]]
    #: Runs with possibly duplicated lines, in which one event may look like two.
    doubled: frozenset[str]


def file_troubles(engine: Engine, intake: Intake) -> FileTroubles:
    """Return the defects by run. A defect that names no run counts for all runs of its directory or, if it
    names no directory, for all runs."""
    runs_of: dict[Path, set[str]] = defaultdict(set)
    located: list[tuple[Path, str]] = [
        (path, defect) for path, all_said in intake.troubles.items() for defect in all_said
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
            located.append((folder, f"{path.name} contains lines of several runs"))
        if row["nobody"]:
            located.append((folder, f"{path.name}: {row['nobody']} lines without a run"))
        if row["corrupt"]:
            unread.append((path, int(row["corrupt"]), folder.as_posix()))
    for path, count, _ in unread:
        folder = folder_of.get(path, path.parent)
        member = path.name.removesuffix(SUFFIX).rpartition(".")[0].partition("-")[2]
        is_explained = path in torn and count == 1 and any((run, member) in killed for run in runs_of[folder])
        if not is_explained:
            located.append((folder, f"{path.name}: {count} unreadable lines"))
    doubled = {run for folder in intake.copied for run in runs_of[folder]}
    raw = set(folders.values())
    for folder in raw | set(converted.values()):
        runs = runs_of[folder]
        if len(runs) > 1 and folder in raw:
            located.append((folder, f"the directory contains several runs: {', '.join(sorted(runs))}"))
        for other, others in runs_of.items():
            if other != folder:
                doubled |= runs & others
                located += [(folder, f"run {run} is also in {other}") for run in sorted(runs & others)]
    everyone = set().union(*runs_of.values())
    defects: dict[str, list[str]] = defaultdict(list)
    for folder, defect in located:
        for run in sorted(runs_of.get(folder) or everyone):
            defects[run].append(defect)
    return FileTroubles(dict(defects), frozenset(doubled))


if __name__ == "__main__":
    main()
