"""Exit codes, and how an error becomes one line on stderr."""

from __future__ import annotations

from enum import IntEnum

import click

from dledger.errors import Code, ConfigError, DLedgerError, Indeterminate


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    INDETERMINATE = 3
    INTERRUPTED = 130


EXIT_CODES_HELP = """\b
Exit codes:
  0    done
  1    something failed; nothing is in doubt (inspect: the log is damaged)
  2    wrong option, argument or configuration
  3    in doubt: some appends may or may not be in the log
  130  interrupted (Ctrl-C)
"""

#: What to do about it. Only where the message of the error cannot know: it is said where it is shown.
_FIXES: dict[Code, str] = {
    Code.NOT_LEADER: "name all nodes in --servers, so that the leader can be found",
    Code.NETWORK_ERROR: "check --servers, and that the nodes run (`dledger status`)",
    Code.TIMEOUT: "check with `dledger status` that a majority of the nodes runs",
    Code.WAIT_QUORUM_ACK_TIMEOUT: "check with `dledger status` that a majority of the nodes runs",
    Code.DISK_FULL: "free space on the leader's disk",
    Code.CERTIFICATE_REFUSED: "look at the certificates: `openssl x509 -in FILE -noout -text`",
    Code.NOT_INITIALIZED: "run `dledger init` for a new node; never for one that lost its directory",
    Code.ALREADY_INITIALIZED: "choose an empty directory",
    Code.DIRECTORY_LOCKED: "another server uses this directory: stop it first",
    Code.UNKNOWN_GROUP: "name the group with --group",
    Code.DATA_DAMAGED: "look at it with `dledger inspect`; keep a copy before anything else",
}


def exit_code_of(error: DLedgerError) -> Exit:
    if isinstance(error, Indeterminate):
        return Exit.INDETERMINATE
    return Exit.USAGE if isinstance(error, ConfigError) else Exit.FAILED


def error_line(error: DLedgerError) -> str:
    """`error 404 NOT_LEADER: what happened; what to do about it`."""
    fix = _FIXES.get(error.code)
    return f"error {error}" + (f"; {fix}" if fix else "")


def print_error(error: DLedgerError) -> None:
    click.echo(error_line(error), err=True)
