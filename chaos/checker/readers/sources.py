"""Detection of the format of a path, and conversion of histories."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path

from chaos.checker.readers import jepsen, porcupine
from chaos.checker.readers.history import Convert, ReaderError

HISTORY_FILE = "history.edn"
_SURVEYED_LINES = 1_000


class Format(StrEnum):
    AUTO = "auto"
    #: A run directory of the chaos harness.
    TRACE = "trace"
    JEPSEN = "jepsen"
    PORCUPINE = "porcupine"


_CONVERT: dict[Format, Convert] = {Format.JEPSEN: jepsen.convert, Format.PORCUPINE: porcupine.convert}


def run_directories(paths: Sequence[Path], format_: Format, folder: Path) -> list[Path]:
    """Return the run directories to check: those among `paths`, and for each history a converted one below
    `folder`.

    Raises:
        ReaderError: a path does not have this format, or its format cannot be detected.
    """
    run_dirs = []
    for number, path in enumerate(paths):
        kind = detect(path) if format_ is Format.AUTO else format_
        if kind is Format.TRACE:
            run_dirs.append(path)
            continue
        source = path / HISTORY_FILE if path.is_dir() else path
        if not source.is_file():
            raise ReaderError(f"{source} does not exist or is not a file")
        run = name_of(source)
        run_dir = folder / f"{number}-{run}"
        _CONVERT[kind](source, run_dir, f"{run}-{number}" if number else run)
        run_dirs.append(run_dir)
    return run_dirs


def name_of(source: Path) -> str:
    """Return the name of the run of a history: the stem of its file or, for generic names, of its
    directory."""
    name = source.stem
    if source.name == HISTORY_FILE or name == "history":
        name = source.resolve().parent.name
    return re.sub(r"[^\w.-]", "_", name)


def detect(path: Path) -> Format:
    """Detect the format of a path.

    Raises:
        ReaderError: the format is ambiguous.
    """
    if path.is_dir():
        return Format.JEPSEN if (path / HISTORY_FILE).is_file() else Format.TRACE
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = list(islice(file, _SURVEYED_LINES))
        if any(porcupine.is_line(line) for line in lines):
            return Format.PORCUPINE
        if path.suffix in (".edn", ".json", ".jsonl") and any(
            re.search(r'[:"]process\b', line) for line in lines
        ):
            return Format.JEPSEN
        raise ReaderError(f"{path}: unknown format; specify --format jepsen or --format porcupine")
    # Intake reports a missing directory.
    return Format.TRACE
