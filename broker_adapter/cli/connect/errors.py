"""How an error of the broker becomes one line on stderr, and an exit code."""

from __future__ import annotations

from broker_adapter.error_advice import BROKER_ADVICE
from broker_adapter.errors import BrokerError, PutIndeterminate
from dledger.platform import Exit


def error_line(error: BrokerError) -> str:
    """`error 700 NOT_MASTER: what happened; what to do about it`."""
    hint = BROKER_ADVICE[error.status].hint
    return f"error {error}" + (f"; {hint}" if hint else "")


def exit_code_of(error: BrokerError) -> Exit:
    return Exit.INDETERMINATE if isinstance(error, PutIndeterminate) else Exit.FAILED
