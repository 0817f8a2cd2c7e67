"""Exit codes, and the format of errors on stderr."""

from __future__ import annotations

import errno
from enum import IntEnum

import click

from dledger.errors import Code, ConfigError, DLedgerError, Indeterminate

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
_FULL = {errno.ENOSPC, errno.EDQUOT}


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


def show_exit_codes(command: click.Command, text: str) -> None:
    """Append `text` to the help of `command` and all subcommands, except those that document their own exit
    codes."""
    if command.epilog is None and "Exit code" not in (command.help or ""):
        command.epilog = text
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            show_exit_codes(inner, text)


def exit_code_of(error: DLedgerError) -> Exit:
    if isinstance(error, Indeterminate):
        return Exit.INDETERMINATE
    return Exit.USAGE if isinstance(error, ConfigError) else Exit.FAILED


def disk_error(error: OSError) -> DLedgerError:
    """Return the numbered error, with the remedy, for a file that a command could not use."""
    if error.errno in _REFUSED:
        return ConfigError(f"{error}; choose another path, or correct its permissions")
    remedy = "; free space on this disk, or choose another" if error.errno in _FULL else ""
    return DLedgerError(f"{error}{remedy}", code=Code.DISK_ERROR)


def error_line(error: DLedgerError) -> str:
    """Format an error: `error 404 NOT_LEADER: what happened; what to do`."""
    hint = error.code.hint
    return f"error {error}" + (f"; {hint}" if hint else "")


def print_error(error: DLedgerError) -> None:
    click.echo(error_line(error), err=True)
