"""Exit codes of all programs, from the constants in the code."""

from __future__ import annotations

from chaos.checker.main import EXIT_ARGUMENTS, EXIT_CRASH
from chaos.verdict import RunVerdict
from dledger.cli.exits import Exit
from dledger.infra.loops.watchdog import EXIT_STUCK
from dledger.node.run import EXIT_CONFIG, EXIT_FAILED
from dledger.node.server import EXIT_FATAL

_COMMANDS = "`dledger`, `dledger-namesrv`"
_NODE = "a node (`dledger server`)"
_CHAOS = "`dledger-chaos`, `dledger-check`"

EXITS: tuple[tuple[int, str, str], ...] = (
    (Exit.OK, "all", "Success. `dledger-check`: the run is valid."),
    (
        Exit.FAILED,
        _COMMANDS,
        "The command failed, with no outcome in doubt. `inspect`, `scrub`: damage was found.",
    ),
    (
        EXIT_FAILED,
        _NODE,
        "The start failed, or the node stopped without its disk, which hung. See its last log line.",
    ),
    (
        RunVerdict.INVALID.exit_code,
        _CHAOS,
        "A guarantee was violated. The report names the lines of the trace.",
    ),
    (Exit.USAGE, _COMMANDS, "An invalid option, argument or configuration."),
    (EXIT_CONFIG, _NODE, "An invalid configuration (630, 635, 637)."),
    (RunVerdict.VOID.exit_code, _CHAOS, "Void or unknown: the run is inconclusive; or an invalid option."),
    (Exit.INDETERMINATE, _COMMANDS, "In doubt: some appends or messages may or may not be stored."),
    (3, "`dledger-chaos run`", "A run could not be executed."),
    (
        EXIT_STUCK,
        _NODE,
        "The event loop was blocked for `timing.loop_stall_ms`. The log ends with a stack trace.",
    ),
    (
        EXIT_FATAL,
        _NODE,
        "A disk error or a violated invariant (641, 414, 408, 409). See *fatal* in the log.",
    ),
    (Exit.INTERRUPTED, "all", "Interrupted (Ctrl-C)."),
    (EXIT_ARGUMENTS, "`dledger-check`", "An invalid option, or an unreadable trace."),
    (
        EXIT_CRASH,
        "`dledger-check`, `dledger-chaos demo`",
        "The checker failed, or the demo could not be executed.",
    ),
)
