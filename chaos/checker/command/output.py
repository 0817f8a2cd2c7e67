"""Output of the command: results to stdout, everything else to stderr.

A closed pipe, as with `head`, or an output device without space does not change the exit code.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


def write_result(text: str) -> None:
    """Print lines to stdout and flush them, because later steps may fail."""
    if not _write(sys.stdout, text):
        write_error("error: the output could not be written; the exit code states the verdict")


def write_error(text: str) -> None:
    """Print lines to stderr."""
    _write(sys.stderr, text)


def end_quietly() -> None:
    """Discard further output to stdout, whose reader has closed it."""
    _redirect_to_null(sys.stdout)


def plain(text: str) -> str:
    """Return text from traces as one line. Escapes the characters that a terminal or XML would interpret."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def _write(stream: TextIO | None, text: str) -> bool:
    """Write and flush a line. Return False on an error that must be reported to the user."""
    if stream is None:
        # The stream was closed before the start of the process.
        return True
    try:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError) as error:
        _redirect_to_null(stream)
        return isinstance(error, (BrokenPipeError, ValueError))
    return True


def _redirect_to_null(stream: TextIO) -> None:
    """Redirect the stream to /dev/null. Otherwise the interpreter tries to flush it again at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
