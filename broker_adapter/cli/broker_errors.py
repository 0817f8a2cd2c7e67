"""How an error of the broker becomes one line on stderr, and an exit code."""

from __future__ import annotations

from broker_adapter.errors import BrokerError, PutIndeterminate, Status
from dledger import Exit

#: What to do about it, where the message of the error cannot know.
_FIXES: dict[Status, str] = {
    Status.NOT_MASTER: "see with `dledger broker status` whether a majority of the nodes runs",
    Status.NOT_CONNECTED: "check --servers or --namesrv, and that the nodes run (`dledger broker status`)",
    Status.NAMESRV_UNREACHABLE: "check --namesrv, and that one runs there; or name the nodes with --servers",
    Status.TOPIC_UNKNOWN: "see `dledger broker topic list`, or `dledger broker topic create`",
    Status.TOPIC_NOT_WRITABLE: "`dledger broker topic create NAME --perm rw` makes it writable",
    Status.GROUP_UNKNOWN: "see `dledger broker group list`, or `dledger broker group create`",
    Status.GROUP_HAS_MEMBERS: "stop its consumers first",
    Status.DISK_FULL: "free space on the master's disk",
    Status.OUTCOME_UNKNOWN: "look at `dledger broker status` before you try again: it may have been done",
}


def error_line(error: BrokerError) -> str:
    """`error 700 NOT_MASTER: what happened; what to do about it`."""
    fix = _FIXES.get(error.status)
    return f"error {error}" + (f"; {fix}" if fix else "")


def exit_code_of(error: BrokerError) -> Exit:
    return Exit.INDETERMINATE if isinstance(error, PutIndeterminate) else Exit.FAILED
