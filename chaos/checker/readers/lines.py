"""Which line of the user's file a line of a converted history was made of."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import BinaryIO

#: Beside the lines of the trace.
FOLDER = "source"
_PATH = "path"
_NUMBER = Struct("<q")


class LineMap:
    """Written with the trace: a file of 8 bytes a line for each file of it, and the path of the source."""

    def __init__(self, run_dir: Path, source: Path) -> None:
        self._folder = run_dir / FOLDER
        self._folder.mkdir(parents=True)
        (self._folder / _PATH).write_bytes(os.fsencode(source))
        self._files: dict[str, BinaryIO] = {}

    def add(self, file: str, line: int) -> None:
        """The next line of `file` was made of this line of the source."""
        if file not in self._files:
            self._files[file] = (self._folder / file).open("wb")
        self._files[file].write(_NUMBER.pack(line))

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def source_of(run_dir: Path) -> Path | None:
    """The file that a trace was converted from; None if it was not converted."""
    path = run_dir / FOLDER / _PATH
    return Path(os.fsdecode(path.read_bytes())) if path.is_file() else None


def source_line(run_dir: Path, file: str, line: int) -> str | None:
    """`path:line` of what a line (from 1) of a file of a trace was made of; None if it was not converted."""
    folder = run_dir / FOLDER
    try:
        source = (folder / _PATH).read_bytes().decode("utf-8", "backslashreplace")
        with (folder / file).open("rb") as numbers:
            numbers.seek((line - 1) * _NUMBER.size)
            return f"{source}:{_NUMBER.unpack(numbers.read(_NUMBER.size))[0]}"
    except OSError:
        return None
