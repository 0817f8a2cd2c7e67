"""The exception for broken promises."""

from __future__ import annotations


class Violation(AssertionError):
    """Raised when a simulated run violates a guarantee. `rule` names the guarantee."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule = rule
        self.detail = detail
        super().__init__(f"[{rule}] {detail}")
