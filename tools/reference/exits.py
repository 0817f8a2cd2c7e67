"""Exit codes of all programs, out of their constants."""

from __future__ import annotations

from chaos.checker.main import EXIT_ARGUMENTS, EXIT_CRASH
from chaos.verdict import Verdict
from dledger.cli.exits import Exit
from dledger.node.loop.watchdog import EXIT_STUCK
from dledger.node.run import EXIT_CONFIG, EXIT_FAILED
from dledger.node.server import EXIT_FATAL

_COMMANDS = "`dledger`, `dledger-namesrv`"
_NODE = "a node (`dledger server`)"
_CHAOS = "`dledger-chaos`, `dledger-check`"

EXITS: tuple[tuple[int, str, str], ...] = (
    (Exit.OK, "all", "Done. Of `dledger-check`: valid."),
    (Exit.FAILED, _COMMANDS, "Something failed; nothing is in doubt. `inspect`, `scrub`: damage was found."),
    (
        EXIT_FAILED,
        _NODE,
        "The start failed, or the process had to end without a stuck disk. The last line says why.",
    ),
    (Verdict.INVALID.exit_code, _CHAOS, "A promise was broken. The report names the lines of the trace."),
    (Exit.USAGE, _COMMANDS, "A wrong option, argument or configuration."),
    (EXIT_CONFIG, _NODE, "A wrong configuration (630, 623, 635, 637)."),
    (Verdict.VOID.exit_code, _CHAOS, "Void or unknown: the run proves nothing, or a wrong option."),
    (Exit.INDETERMINATE, _COMMANDS, "In doubt: some appends or messages may or may not be stored."),
    (3, "`dledger-chaos run`", "A run could not be carried out."),
    (
        EXIT_STUCK,
        _NODE,
        "The event loop had not turned for `timing.loop_stall_ms`. The log ends with a trace.",
    ),
    (
        EXIT_FATAL,
        _NODE,
        "The disk or the state cannot be believed (641, 414, 408, 409). See *fatal* in the log.",
    ),
    (Exit.INTERRUPTED, "all", "Interrupted (Ctrl-C)."),
    (EXIT_ARGUMENTS, "`dledger-check`", "A wrong option, or a trace that cannot be read."),
    (
        EXIT_CRASH,
        "`dledger-check`, `dledger-chaos demo`",
        "The checker itself failed, or the demo's run did.",
    ),
)
