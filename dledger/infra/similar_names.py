"""Names that resemble a name which does not exist, for error texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return "did you mean x?" with the most similar valid name, or "" if none is similar.

    Ignores case, and treats `-` as `_`.
    """
    by_folded = {_folded(one): one for one in valid}
    similar = difflib.get_close_matches(_folded(name), by_folded, n=1)
    return f"did you mean {by_folded[similar[0]]}?" if similar else ""


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
