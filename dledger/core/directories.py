"""Numbers of a node's directories, which reveal the return of an earlier one (rule 11).

Suppose the volume of a node is not mounted, the node rejoins with an empty directory, votes and acknowledges
entries, and the volume returns. A node that started on the old directory could vote a second time, and could
elect a leader without these entries. Members therefore remember the newest directory of every other member.
They know it before it counts: a rejoining node waits for every other elector, and each records the number
before it reports. It does not wait for learners. Every configuration entry therefore has the newest numbers
that its leader knows, and a learner knows them from the entry that makes it a voter.

`init` gives a directory its first incarnation as its number, which is random. A member accepts the first such
number that it sees and no other one, so that it also refuses a node that lost its directory and was
initialized again. Each rejoin gives a number above all that the other members know.
"""

from __future__ import annotations

from dledger.core.values import HardState, member_key

#: Numbers of directories created by a rejoin start here, above every incarnation.
FIRST_REJOINED = 1 << 32
MAX_DIRECTORY = 1 << 62


def with_own_directory(state: HardState, node_id: str) -> HardState:
    """Return the state of a starting node, with a number for a directory that has none yet."""
    key = member_key(node_id, state.uid)
    if state.directory_of(key):
        return state
    first = FIRST_REJOINED if state.rejoining else 0
    return state.with_directories({key: first + state.incarnation})


def supersedes(number: int, known: int) -> bool:
    """Return True if directory `number` of a node can have replaced the directory `known` (0: none)."""
    return number > known and (known == 0 or number >= FIRST_REJOINED)


def newer_of(recorded: int, other: int) -> int:
    """Return the newer of two directories of a node. `recorded` counts unless the other one supersedes it."""
    return other if supersedes(other, recorded) else recorded


def next_number(own: int, known: int) -> int:
    """Return a number for the directory `own` that supersedes `known`."""
    return known - known % FIRST_REJOINED + FIRST_REJOINED + own % FIRST_REJOINED
