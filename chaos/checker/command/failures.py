"""What went wrong in Spark, in a sentence with what to do about it."""

from __future__ import annotations

import errno
import os
import re

from chaos.checker.engine import EngineFailed
from chaos.checker.intake import IntakeError
from chaos.checker.paths import file_of

_FULL = os.strerror(errno.ENOSPC)
_HEAP = "OutOfMemoryError"
#: Spark's words for a file that breaks off or whose bytes are damaged; in it the file.
_DAMAGED = re.compile(
    r"(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)\S*\].*?file:? ?(\S+?)\.?(?:\s|$)", re.DOTALL
)
#: Of Java's and Spark's texts only what went wrong.
_ENDS = re.compile(r"\n\s*at |\nJVM stacktrace|\nDriver stacktrace|\n== SQL|SQLSTATE: \w+")
_MOST_CHARACTERS = 300


def explained(said: str, details: str, work: str) -> EngineFailed | IntakeError:
    """The error to raise. `said`: what the exception says of itself; `details`: all about it; `work`: where
    tables are."""
    if _FULL in details:
        return EngineFailed(
            f"no space left for tables in {work}; name another directory with --work", details
        )
    if found := _DAMAGED.search(details):
        return IntakeError(
            f"{file_of(found[1])} is damaged and cannot be read; nothing can be said of its run"
        )
    if _HEAP in details:
        return EngineFailed("the heap does not suffice; give more with --memory, as in --memory 4g", details)
    short = " ".join(_ENDS.split(said)[0].split())
    return EngineFailed(short[:_MOST_CHARACTERS], details)
