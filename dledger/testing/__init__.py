"""A deterministic simulator of whole clusters, for this project's tests and for those of its users.

`Simulation` is a cluster that a test drives by hand: crash, cut, pause, append, look. `run_seed` is a random
run from one seed, with faults, clients and all checks. Give either a `state_machine` to put one of your own
under test: it is fed with committed entries on every node, through every crash, and must end equal on all. Or
a `durable_machine`, which has a file that outlives its process, and has to be right at every step.
"""

from dledger.store.disk import CrashKind
from dledger.testing.durable import CheckedMachine, MachineFiles
from dledger.testing.profile import QUIET, Profile, draw_profile
from dledger.testing.run import RunOptions, RunResult, check_end, run_seed, settle_ms
from dledger.testing.simulator import Attempt, Simulation
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import StateMachine

__all__ = [
    "QUIET",
    "Attempt",
    "CheckedMachine",
    "CrashKind",
    "MachineFiles",
    "Profile",
    "RunOptions",
    "RunResult",
    "Simulation",
    "StateMachine",
    "Violation",
    "check_end",
    "draw_profile",
    "run_seed",
    "settle_ms",
]
