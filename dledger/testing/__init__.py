"""A deterministic simulator of whole clusters, for the tests of this project and of its users.

`Simulation` is a cluster that a test drives by hand: crash, cut, pause, append, inspect. `run_seed` is a
random run from one seed, with faults, clients and all checks. Both accept a `state_machine` to test. Every
node passes the committed entries to it, and passes them again after each crash. At the end all copies must be
equal. A `durable_machine` also has a file that survives its process, and is checked after every step.
"""

from dledger.infra.files.disk import CrashKind
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
