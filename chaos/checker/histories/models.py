"""Which checks apply to a history of another system: its model (`chaos.checker.readers.history`) decides.

Of all that is promised to clients of ours such a history may promise less. What its trace is (W, V) is always
checked.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaos.checker.checks.registry import Check, Severity

_KAFKA = tuple(f"H{number}" for number in range(20, 37))

#: By model, the checks of what its system promises.
CHECKS_OF: dict[str, frozenset[str]] = {
    "set": frozenset(("H1", "H2", "H3", "H5", "H7")),
    "queue": frozenset(("H0", "H1", "H2", "H3", "H4", "H6")),
    "kafka": frozenset(_KAFKA),
    "register": frozenset(("H8", "H9")),
    "store": frozenset(("H8", "H9")),
}
MODELS = tuple(CHECKS_OF)

#: Without these a history shows nothing: one of each.
ESSENTIAL_OF: dict[str, tuple[tuple[str, ...], ...]] = {
    "set": (("H1",), ("H2",), ("H3",)),
    "queue": (("H1",), ("H2",), ("H3",)),
    "kafka": (("H20",), ("H21",), ("H22",), ("H23",), ("H26",)),
    "register": (("H8",),),
    "store": (("H8",),),
}


def model_of(counts: Mapping[str, int]) -> str | None:
    """The model of the history that a census is of; None: it is a run of ours."""
    return next((model for model in MODELS if counts.get(f"of_{model}")), None)


def applies(check: Check, counts: Mapping[str, int]) -> bool:
    model = model_of(counts)
    return model is None or check.severity is Severity.VOID or check.id in CHECKS_OF[model]
