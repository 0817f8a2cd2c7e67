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


#: One address alone may have so much of `SharedRoom`, as a multiple of what it leaves: three quarters.
_GENEROUS = 3


class SharedRoom:
    """Bytes that clients share: one alone may have three quarters, and each other one three quarters of what
    is left then. A client that has none yet gets what fits. "" is a client without a share."""

    def __init__(self, total: int) -> None:
        self.used = 0
        self._total = total
        self._of: dict[str, int] = {}

    def has_room(self, size: int) -> bool:
        """In all. What is alone has room however large."""
        return self.used <= 0 or self.used + size <= self._total

    def is_due(self, client: str, size: int) -> bool:
        """Whether the client's share allows it."""
        own = self._of.get(client, 0) if client else 0
        return own <= 0 or own + size <= _GENEROUS * (self._total - self.used - size)

    def take(self, client: str, size: int) -> None:
        """Negative: give back."""
        self.used += size
        if client:
            left = self._of.get(client, 0) + size
            if left:
                self._of[client] = left
            else:
                self._of.pop(client, None)  # nothing was taken, and nothing is given back
