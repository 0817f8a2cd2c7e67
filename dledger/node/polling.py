"""The event loop's way to ask the kernel for events, less often than asyncio would."""

from __future__ import annotations

import selectors
from typing import Any

#: So many times in a row a loop that has work to do goes on without asking.
_MAX_SKIPPED = 3


class SparingSelector(selectors.DefaultSelector):
    """asyncio asks the kernel for events before every round of callbacks, also when it has some to run. An
    append takes a dozen rounds, half of them with work at hand; that question alone is a twentieth of the
    time. So it is put off, a few times at most, while there is work."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        if timeout == 0 and self._skipped < _MAX_SKIPPED:
            self._skipped += 1
            return []
        self._skipped = 0
        return super().select(timeout)
