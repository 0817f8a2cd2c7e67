"""Broker ids, which distinguish the nodes of one broker in routes, registrations and pull responses."""

from typing import Final

#: The id of a master. Slaves have ids of 1 and above.
MASTER_ID: Final = 0
