"""The numbers that tell the nodes of one broker apart, in routes, registrations and answers to pulls."""

from typing import Final

#: Slaves have 1 and more.
MASTER_ID: Final = 0
