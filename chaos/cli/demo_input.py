"""The demo's input. Without --input: a long text that every machine with Python has."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from dledger.errors import ConfigError

# The first is the text of Python's own help, some 15,000 lines; the others are long modules, for
# distributions that leave it out.
_CANDIDATES = ("pydoc_data/topics.py", "_pydecimal.py", "turtle.py", "typing.py", "argparse.py")
_ENOUGH_LINES = 10_000


def default_input() -> list[Path]:
    """Files to send one after the other: as few as make up enough lines."""
    library = Path(sysconfig.get_path("stdlib"))
    chosen: list[Path] = []
    lines = 0
    for name in _CANDIDATES:
        path = library / name
        if lines < _ENOUGH_LINES and path.is_file():
            chosen.append(path)
            lines += len(read_lines(path))
    if not chosen:
        raise ConfigError(f"no text was found in {library}: name a file with --input")
    return chosen


def read_lines(path: Path) -> list[bytes]:
    """As `dledger append` splits a file: the last line needs no newline, empty lines count."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    return lines[:-1] if lines[-1] == b"" else lines
