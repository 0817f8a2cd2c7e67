"""Paths as people read them, and as engines name them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?:/[^/]*)?(?=/|$)|file:(?=/)")


def file_of(named: str) -> Path:
    """The file that an engine names: Spark by a URI with escapes (`file:///a%20b`), DuckDB by its path."""
    uri = _URI.match(named)
    return Path(unquote(named[uri.end() :])) if uri else Path(named)


def shown(path: Path) -> str:
    """A path in messages: bytes of names that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
