"""What kind of trace or history a path holds, and its reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path

from chaos.checker.readers import jepsen, porcupine
from chaos.checker.readers.history import Convert, ReaderError

HISTORY_FILE = "history.edn"
_LOOK_AT = 1_000


class Format(StrEnum):
    AUTO = "auto"
    #: A run directory of ours.
    TRACE = "trace"
    JEPSEN = "jepsen"
    PORCUPINE = "porcupine"


_CONVERT: dict[Format, Convert] = {Format.JEPSEN: jepsen.convert, Format.PORCUPINE: porcupine.convert}


def run_directories(paths: Sequence[Path], format_: Format, folder: Path) -> list[Path]:
    """The run directories to check: those among `paths`, and below `folder` one for each history, converted.

    Raises:
        ReaderError: a path holds nothing of this format, or none can be told.
    """
    found = []
    for number, path in enumerate(paths):
        kind = detect(path) if format_ is Format.AUTO else format_
        if kind is Format.TRACE:
            found.append(path)
            continue
        source = path / HISTORY_FILE if path.is_dir() else path
        if not source.is_file():
            raise ReaderError(f"{source} is no file")
        run = name_of(source)
        run_dir = folder / f"{number}-{run}"
        _CONVERT[kind](source, run_dir, f"{run}-{number}" if number else run)
        found.append(run_dir)
    return found


def name_of(source: Path) -> str:
    """What the run of a history is called: after its file, or, if that is always called so, its directory."""
    name = source.stem
    if source.name == HISTORY_FILE or name == "history":
        name = source.resolve().parent.name
    return re.sub(r"[^\w.-]", "_", name)


def detect(path: Path) -> Format:
    """What a path holds, if that is certain.

    Raises:
        ReaderError: it is not.
    """
    if path.is_dir():
        return Format.JEPSEN if (path / HISTORY_FILE).is_file() else Format.TRACE
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = list(islice(file, _LOOK_AT))
        if any(porcupine.is_line(line) for line in lines):
            return Format.PORCUPINE
        if path.suffix in (".edn", ".json", ".jsonl") and any(
            re.search(r'[:"]process\b', line) for line in lines
        ):
            return Format.JEPSEN
        raise ReaderError(f"{path}: cannot tell what it holds; say --format jepsen or --format porcupine")
    # A directory that is missing is told of where runs are taken in.
    return Format.TRACE
