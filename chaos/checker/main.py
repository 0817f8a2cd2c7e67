"""`dledger-check`: the Spark job over one or many runs, its verdict and its report."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
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
from chaos.checker.command.ending import Terminated, WorkFolderError, said_of, signals_raise, work_folder
from chaos.checker.command.failures import explained
from chaos.checker.command.output import complain, end_quietly, plain, say
from chaos.checker.engine import Engine, EngineFailed
from chaos.checker.engines.java import NoJava
from chaos.checker.files import file_troubles
from chaos.checker.follow import WATCHED, follow
from chaos.checker.intake import Intake, IntakeError, take_in
from chaos.checker.judge import RunResult, Verdict, judge
from chaos.checker.paths import shown
from chaos.checker.readers.history import ReaderError
from chaos.checker.readers.sources import Format, run_directories
from chaos.checker.reporting.figures import Figures, take_figures
from chaos.checker.reporting.report import (
    PAGE,
    NotOurs,
    as_json,
    in_words,
    one_line,
    overall,
    write_junit,
    write_report,
)
from chaos.checker.tables import make_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT = {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}
EXIT_ARGUMENTS, EXIT_CRASH, EXIT_INTERRUPTED = 254, 255, 130
#: With --follow: between two looks.
PAUSE_S = 1.0
#: Loads traces into an engine.
Load = Callable[[Intake], Engine]
#: Is told the results as soon as they are known.
Tell = Callable[[list[RunResult]], None]
#: In the directory for tables: histories of other systems, as traces.
CONVERTED_DIR = "converted"
PROGRESS_AFTER_S = 20
_SILENT = logging.NullHandler()


class _Command(click.Command):
    """What goes wrong is a line with what to do about it, and an exit code."""

    def invoke(self, ctx: click.Context) -> int:
        try:
            with signals_raise():
                return int(super().invoke(ctx))
        except (click.exceptions.Exit, click.Abort, KeyboardInterrupt):
            raise
        except Terminated as ended:
            complain(said_of(ended))
            return ended.code
        except Exception as error:
            if ctx.params["debug"]:
                complain(error.details if isinstance(error, EngineFailed) else traceback.format_exc())
            return _fail(error)


def _fail(error: Exception) -> int:
    """Say what went wrong. The exit code."""
    if isinstance(error, (click.ClickException, IntakeError, ReaderError, WorkFolderError)):
        said = error.format_message() if isinstance(error, click.ClickException) else str(error)
        complain(f"error: {plain(said)}")
        return EXIT_ARGUMENTS
    if isinstance(error, NoJava):
        complain(f"error: {error}")
        return EXIT_CRASH
    said = str(error) if isinstance(error, (EngineFailed, OSError)) else f"{type(error).__name__}: {error}"
    complain(
        f"error: {plain(said)}\n"
        "the checker itself failed; this says nothing about the run (--debug shows where it failed)"
    )
    return EXIT_CRASH


@click.command(cls=_Command)
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
@click.option(
    "--memory",
    callback=lambda context, option, given: a_size(given),
    help="Heap of the driver, when it is local. [default: 2g; 4g from 8 GiB on]",
)
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
@click.option("--debug", is_flag=True, help="Show a traceback where an error would be one line.")
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
    """Check the traces of runs, and give each run a verdict.

    \b
    Examples:
      dledger-check /tmp/runs/leader-kill
      dledger-check history.edn --format jepsen --out /tmp/report

    Exit codes: 0 valid, 1 invalid, 2 unknown, 254 bad arguments, 255 the checker itself failed.
    """
    started = time.monotonic()
    checks = chosen(names)
    out = out or default_out(paths[0])

    def tell(results: list[RunResult]) -> None:
        if not as_text:
            say("\n".join([*(line for result in results for line in in_words(result)), one_line(results)]))

    with work_folder(work) as folder:
        run_dirs = run_directories(paths, Format(format_), folder / CONVERTED_DIR)
        with spark_loader(folder, master=master, memory=memory, growing=watch) as load:
            if watch:
                intake, results, figures = watch_runs(load, run_dirs, checks, patience, tell)
            else:
                intake = take_in(run_dirs)
                results, figures = check_loaded(load(intake), intake, checks, tell)
        seconds = time.monotonic() - started
        report = as_json(results, figures, intake, seconds)
    if as_text:
        say(json.dumps(report, indent=1, default=str))
    said = _written(out, "--out", lambda: write_report(out, results, figures, report))
    if said and not as_text:
        say(f"report: {out / PAGE}")
    if junit is not None:
        _written(junit, "--junit", lambda: write_junit(junit, results))
    return EXIT[overall(results)]


def _written(path: Path, option: str, write: Callable[[], object]) -> bool:
    """Whether a report could be written. If not, the verdict stays what it is."""
    try:
        write()
    except (OSError, NotOurs) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        complain(
            f"error: no report at {plain(shown(path))}: {reason}; the verdict and the exit code stand. "
            f"Name another place with {option}"
        )
        return False
    return True


def default_out(path: Path) -> Path:
    """Where the report on a run directory, or on the file of a history, goes."""
    return path.with_name(f"{path.name}-report") if path.is_file() else path / "report"


def a_size(given: str | None) -> str | None:
    """A size of memory, as the JVM takes it.

    Raises:
        click.BadParameter: it is none.
    """
    if given is not None and not re.fullmatch("[1-9][0-9]*[kmgtKMGT]", given, re.ASCII):
        raise click.BadParameter(f"{given!r} is no size as 512m or 4g")
    return given


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
        from chaos.checker.engines.spark import SparkEngine, end, heap_for, is_quick, start
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
        complain(f"read {sum(file.bytes for file in intake.raw)} bytes of lines in {took:.1f} s")
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
        failed = explained(str(error), "".join(traceback.format_exception(error)), str(work_dir.parent))
        stop(whole=False)
        raise failed from None
    except BaseException:
        stop(whole=False)
        raise
    stop(whole=True)


def watch_runs(
    load: Load, run_dirs: Sequence[Path], checks: tuple[Check, ...], patience: int, tell: Tell
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
        complain(f"a promise was broken; seen at look {outcome.looks}")
        intake, engine = newest[0]
        tell(outcome.broken)
        return intake, outcome.broken, _figures(engine)
    intake = take_in(list(run_dirs))
    return intake, *check_loaded(load(intake), intake, checks, tell)


def check_loaded(
    engine: Engine, intake: Intake, checks: tuple[Check, ...], tell: Tell = lambda _: None
) -> tuple[list[RunResult], dict[str, Figures]]:
    """Judge what the engine has loaded, and tell the verdict before anything else is done.

    Raises:
        IntakeError: no line could be read.
    """
    started = time.monotonic()

    def progress(what: str, done: int, total: int) -> None:
        # Who waits long wants to see that it goes on.
        if time.monotonic() - started > PROGRESS_AFTER_S:
            complain(f"{what} done: {done} of {total}")

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
    tell(results)
    return results, _figures(engine)


def _figures(engine: Engine) -> dict[str, Figures]:
    """No verdict hangs on figures: if they cannot be had, the report has none."""
    try:
        return take_figures(engine)
    except Exception as error:
        complain(f"error: the report has no figures: {plain(' '.join(str(error).split())[:300])}")
        return {}


def main() -> None:
    """The console script."""
    # What py4j logs of calls under way when the JVM is ended is no news.
    logging.getLogger().addHandler(_SILENT)
    try:
        code = command.main(standalone_mode=False)
    except click.ClickException as error:
        code = _fail(error)
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except SystemExit:
        # So click ends where nobody reads its help any more.
        end_quietly()
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    main()
