"""Paths in messages, and in the notation of the engines."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?:/[^/]*)?(?=/|$)|file:(?=/)")


def file_of(named: str) -> Path:
    """Return the file for a name that an engine uses. Spark uses an escaped URI (`file:///a%20b`), DuckDB a
    path."""
    uri = _URI.match(named)
    return Path(unquote(named[uri.end() :])) if uri else Path(named)


def shown(path: Path) -> str:
    """Return a path for a message. Escapes bytes that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
