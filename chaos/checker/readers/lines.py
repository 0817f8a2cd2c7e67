"""Map from the lines of a converted history to the lines of the user's file."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import BinaryIO

#: Directory next to the lines of the trace.
FOLDER = "source"
_PATH = "path"
_NUMBER = Struct("<q")


class LineMap:
    """The map that is written with the trace. It consists of a file with 8 bytes per line for each file of
    the trace, and the path of the source."""

    def __init__(self, run_dir: Path, source: Path) -> None:
        self._folder = run_dir / FOLDER
        self._folder.mkdir(parents=True)
        (self._folder / _PATH).write_bytes(os.fsencode(source))
        self._files: dict[str, BinaryIO] = {}

    def add(self, file: str, line: int) -> None:
        """Record that the next line of `file` was made from this line of the source."""
        if file not in self._files:
            self._files[file] = (self._folder / file).open("wb")
        self._files[file].write(_NUMBER.pack(line))

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def source_of(run_dir: Path) -> Path | None:
    """Return the file from which a trace was converted, or None."""
    path = run_dir / FOLDER / _PATH
    return Path(os.fsdecode(path.read_bytes())) if path.is_file() else None


def source_line(run_dir: Path, file: str, line: int) -> str | None:
    """Return `path:line` of the source of a line (from 1) in a trace, or None if it was not converted."""
    folder = run_dir / FOLDER
    try:
        source = (folder / _PATH).read_bytes().decode("utf-8", "backslashreplace")
        with (folder / file).open("rb") as numbers:
            numbers.seek((line - 1) * _NUMBER.size)
            return f"{source}:{_NUMBER.unpack(numbers.read(_NUMBER.size))[0]}"
    except OSError:
        return None
