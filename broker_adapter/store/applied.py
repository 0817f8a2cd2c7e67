"""Progress of the Dispatcher."""

from __future__ import annotations

from dledger import Applied

NOTHING = Applied(-1, -1, 0)
