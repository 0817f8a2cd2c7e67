"""Room that clients share: each may have as much as is left free then.

These are dynamic thresholds (Choudhury and Hahne, 1998): one alone gets half, n that want all of it get a
part in n + 1 each, and whoever comes next finds as much as each of them has.
"""

from __future__ import annotations


def fits(size: int, own: int, used: int, total: int) -> bool:
    """Whether someone who has `own` may have `size` more, while `used` of `total` is taken by all."""
    return own + size <= total - used - size


class Shares:
    """By client; sizes in bytes."""

    def __init__(self, total: int) -> None:
        self.used = 0
        self._total = total
        self._of: dict[str, int] = {}

    def replace(self, client: str, before: int, size: int) -> bool:
        """`size` instead of `before`, which the client has. Whether there was room; less always fits."""
        own, used = self._of.get(client, 0) - before, self.used - before
        if size > before and not fits(size, own, used, self._total):
            return False
        self.used = used + size
        if own + size:
            self._of[client] = own + size
        else:
            self._of.pop(client, None)
        return True
