"""Formatting of broker errors for stderr, and their exit codes."""

from __future__ import annotations

from broker_adapter.errors import BrokerError, PutIndeterminate
from dledger.cli.exits import Exit


def error_line(error: BrokerError) -> str:
    """Format an error as `error 700 NOT_MASTER: what happened; what to do about it`."""
    hint = error.status.hint
    return f"error {error}" + (f"; {hint}" if hint else "")


def exit_code_of(error: BrokerError) -> Exit:
    return Exit.INDETERMINATE if isinstance(error, PutIndeterminate) else Exit.FAILED
