"""`dledger-check`: the Spark job over one or many runs, its verdict and its report."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Check, Severity
from chaos.checker.engine import Engine, EngineFailed
from chaos.checker.files import file_troubles
from chaos.checker.follow import WATCHED, follow
from chaos.checker.intake import Intake, IntakeError, take_in
from chaos.checker.java import NoJava
from chaos.checker.judge import RunResult, Verdict, judge
from chaos.checker.readers.history import ReaderError
from chaos.checker.readers.sources import Format, run_directories
from chaos.checker.reporting.figures import Figures, take_figures
from chaos.checker.reporting.report import (
    as_json,
    one_line,
    overall,
    verdict_sentence,
    write_junit,
    write_report,
)
from chaos.checker.tables import make_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT = {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}
EXIT_ARGUMENTS, EXIT_CRASH = 254, 255
#: With --follow: between two looks.
PAUSE_S = 1.0
#: Loads traces into an engine.
Load = Callable[[Intake], Engine]
#: Below the report: histories of other systems, as traces.
CONVERTED_DIR = "converted"
PROGRESS_AFTER_S = 20


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN_DIR|FILE...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Report directory. [default: RUN_DIR/report, of a file FILE-report]",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice([one.value for one in Format]),
    default=Format.AUTO.value,
    show_default=True,
    help="What is checked: traces of ours, Jepsen's histories, logs as Porcupine reads them.",
)
@click.option("--master", help="Where Spark runs. [default: what spark-submit says, else local[*]]")
@click.option("--memory", help="Heap of the driver, when it is local. [default: 2g; 4g from 8 GiB on]")
@click.option(
    "--checks", "names", help="Only these, with commas between; the trace itself is always checked."
)
@click.option("--work", type=click.Path(path_type=Path), help="Where tables go; every worker must reach it.")
@click.option(
    "--follow", "watch", is_flag=True, help="Watch runs that go on, and stop at the first broken promise."
)
@click.option(
    "--patience",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="With --follow: a run is over when nothing was written for so many seconds.",
)
@click.option("--json", "as_text", is_flag=True, help="Print results.json instead of the verdict.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML here as well.")
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
) -> int:
    """Say of each run whether what was promised was kept.

    Exit codes: 0 valid, 1 invalid, 2 unknown, 254 bad arguments, 255 the checker itself failed.
    """
    started = time.monotonic()
    checks = chosen(names)
    out = out or default_out(paths[0])
    # Kept with the report, whose witnesses name lines of them.
    converted = out / CONVERTED_DIR
    shutil.rmtree(converted, ignore_errors=True)
    run_dirs = run_directories(paths, Format(format_), converted)
    with (
        tempfile.TemporaryDirectory(prefix="dledger-check-", dir=work) as folder,
        spark_loader(Path(folder), master=master, memory=memory, growing=watch) as load,
    ):
        if watch:
            intake, results, figures = watch_runs(load, run_dirs, checks, patience)
        else:
            intake = take_in(run_dirs)
            results, figures = check_loaded(load(intake), intake, checks)
    seconds = time.monotonic() - started
    page = write_report(out, results, figures, intake, seconds)
    if junit is not None:
        write_junit(junit, results)
    if as_text:
        click.echo(json.dumps(as_json(results, figures, intake, seconds), indent=1, default=str))
    else:
        for result in results:
            click.echo(verdict_sentence(result))
        click.echo(one_line(results))
        click.echo(f"report: {page}")
    return EXIT[overall(results)]


def default_out(path: Path) -> Path:
    """Where the report on a run directory, or on the file of a history, goes."""
    return path.with_name(f"{path.name}-report") if path.is_file() else path / "report"


def chosen(names: str | None) -> tuple[Check, ...]:
    """The checks of these ids, and those that say whether the trace is worth anything.

    Raises:
        click.BadParameter: there is no such check.
    """
    if names is None:
        return CHECKS
    wanted = {name.strip() for name in names.split(",")}
    if unknown := wanted - {check.id for check in CHECKS}:
        raise click.BadParameter(f"no such check: {', '.join(sorted(unknown))}")
    return tuple(check for check in CHECKS if check.id in wanted or check.severity is Severity.VOID)


@contextmanager
def spark_loader(work_dir: Path, *, master: str | None, memory: str | None, growing: bool) -> Iterator[Load]:
    """What loads traces into Spark, which is started for the first of them and stopped in the end.

    `growing`: what is loaded next may be much more than the first.

    Raises:
        EngineFailed: something went wrong that is not the user's affair.
    """
    # Spark is an extra: whoever only wants the names of checks need not have it.
    try:
        from chaos.checker.spark import SparkEngine, end, heap_for, is_quick, start
    except ImportError as error:
        raise click.ClickException(f"Spark is missing ({error}): pip install 'dledger[checker]'") from error

    sessions: list[SparkSession] = []

    def load(intake: Intake) -> Engine:
        if not sessions:
            quick = is_quick(intake) and not growing
            heap = memory or heap_for(intake)
            sessions.append(start(work_dir, master=master, memory=heap, quick=quick, archived=True))
        # Each load has tables of its own; those of the one before it are not needed any more.
        tables = work_dir / "tables"
        shutil.rmtree(tables, ignore_errors=True)
        engine = SparkEngine(sessions[0], tables)
        started = time.monotonic()
        engine.load(intake)
        took = time.monotonic() - started
        click.echo(f"read {sum(file.bytes for file in intake.raw)} bytes of lines in {took:.1f} s", err=True)
        return engine

    def stop(whole: bool) -> None:
        for session in sessions:
            end(session, whole=whole)

    try:
        yield load
    except (click.ClickException, IntakeError, ReaderError, NoJava):
        stop(whole=False)
        raise
    except Exception as error:
        # Texts of Spark's errors are asked of its JVM, which is about to end.
        said = "".join(traceback.format_exception(error))
        stop(whole=False)
        raise EngineFailed(said) from None
    except BaseException:
        stop(whole=False)
        raise
    stop(whole=True)


def watch_runs(
    load: Load, run_dirs: Sequence[Path], checks: tuple[Check, ...], patience: int
) -> tuple[Intake, list[RunResult], dict[str, Figures]]:
    """Watch runs until a promise is broken, or they are over; then check all.

    Raises:
        IntakeError: nothing was ever written.
    """
    newest: list[tuple[Intake, Engine]] = []

    def look() -> list[RunResult]:
        intake = take_in(list(run_dirs))
        engine = load(intake)
        newest[:] = [(intake, engine)]
        make_tables(engine)
        return judge(engine, WATCHED)

    outcome = follow(run_dirs, look, lambda: time.sleep(PAUSE_S), patience=round(patience / PAUSE_S))
    if outcome.broken is not None:
        click.echo(f"a promise was broken; seen at look {outcome.looks}", err=True)
        intake, engine = newest[0]
        return intake, outcome.broken, take_figures(engine)
    intake = take_in(list(run_dirs))
    return intake, *check_loaded(load(intake), intake, checks)


def check_loaded(
    engine: Engine, intake: Intake, checks: tuple[Check, ...]
) -> tuple[list[RunResult], dict[str, Figures]]:
    """Judge what the engine has loaded.

    Raises:
        IntakeError: no line could be read.
    """
    started = time.monotonic()

    def progress(what: str, done: int, total: int) -> None:
        # Who waits long wants to see that it goes on.
        if time.monotonic() - started > PROGRESS_AFTER_S:
            click.echo(f"{what} done: {done} of {total}", err=True)

    make_tables(engine, partial(progress, "steps of making tables"))
    troubles = file_troubles(engine, intake)
    results = judge(
        engine,
        checks,
        troubles=troubles.said,
        doubled=troubles.doubled,
        on_progress=partial(progress, "checks"),
    )
    if not results:
        raise IntakeError("no line of the trace could be read")
    return results, take_figures(engine)


def main() -> None:
    """The console script."""
    try:
        code = command.main(standalone_mode=False)
    except (click.ClickException, IntakeError, ReaderError) as error:
        said = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"error: {said}", err=True)
        code = EXIT_ARGUMENTS
    except NoJava as error:
        click.echo(f"error: {error}", err=True)
        code = EXIT_CRASH
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except Exception as failed:
        said = str(failed) if isinstance(failed, EngineFailed) else traceback.format_exc()
        click.echo(f"{said}\nthe checker itself failed; this says nothing about the run", err=True)
        code = EXIT_CRASH
    sys.exit(code)


if __name__ == "__main__":
    main()
