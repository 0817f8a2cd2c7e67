"""What the command says: to stdout its results, to stderr everything else.

A reader that has seen enough, as `head` does, or an output that takes nothing more, changes no exit code.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


def say(text: str) -> None:
    """Print lines to stdout, at once: what follows may fail."""
    if not _write(sys.stdout, text):
        complain("error: the output could not be written; the exit code says the verdict")


def complain(text: str) -> None:
    """Print lines to stderr."""
    _write(sys.stderr, text)


def end_quietly() -> None:
    """Whoever read stdout is gone."""
    _give_up(sys.stdout)


def plain(text: str) -> str:
    """Text from traces, in one line: what a terminal, or XML, takes for something else is escaped."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text
    )


def _write(stream: TextIO | None, text: str) -> bool:
    """Whether there is no reason to complain."""
    if stream is None:
        # It was closed before the start.
        return True
    try:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError) as error:
        _give_up(stream)
        return isinstance(error, (BrokenPipeError, ValueError))
    return True


def _give_up(stream: TextIO) -> None:
    """What is still to be written goes nowhere; otherwise the interpreter tries it once more when it ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
