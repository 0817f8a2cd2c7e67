"""One folder for the files that decoders of files are given. Children share that of their parent."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    """In memory if there is such a place: a file is written for each input. Removed when the process ends."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="dledger-fuzz-", dir=shared if shared.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
