"""The alarm."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken in a simulated run. `rule` names the promise."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule = rule
        self.detail = detail
        super().__init__(f"[{rule}] {detail}")
