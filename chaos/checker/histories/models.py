"""Checks for histories of other systems, by model (`chaos.checker.readers.history`).

The other system may have weaker guarantees than this project. Checks of the trace (W, V) always apply.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaos.checker.checks.registry import Check, Severity

_KAFKA = tuple(f"H{number}" for number in range(20, 37))

#: Checks by model.
CHECKS_OF: dict[str, frozenset[str]] = {
    "set": frozenset(("H1", "H2", "H3", "H5", "H7")),
    "queue": frozenset(("H0", "H1", "H2", "H3", "H4", "H6")),
    "kafka": frozenset(_KAFKA),
    "register": frozenset(("H8", "H9")),
    "store": frozenset(("H8", "H9")),
}
MODELS = tuple(CHECKS_OF)

#: Groups of checks. A history is conclusive only if one check of each group has data.
ESSENTIAL_OF: dict[str, tuple[tuple[str, ...], ...]] = {
    "set": (("H1",), ("H2",), ("H3",)),
    "queue": (("H1",), ("H2",), ("H3",)),
    "kafka": (("H20",), ("H21",), ("H22",), ("H23",), ("H26",)),
    "register": (("H8",),),
    "store": (("H8",),),
}


def model_of(counts: Mapping[str, int]) -> str | None:
    """Return the model of a history from its census, or None for a chaos run."""
    return next((model for model in MODELS if counts.get(f"of_{model}")), None)


def applies(check: Check, counts: Mapping[str, int]) -> bool:
    model = model_of(counts)
    return model is None or check.severity is Severity.VOID or check.id in CHECKS_OF[model]
