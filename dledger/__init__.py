"""A replicated, durable, checkable commit log.

The client's names are here for use; they are imported when first asked for, so that `import dledger` alone
(a command line, the pure core) does not load gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dledger.errors import (
    Code,
    ConfigError,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    NotLeader,
    Overloaded,
    ReadFailed,
    Refused,
    SessionExpired,
    StorageError,
)
from dledger.status.model import ElectionEvent, FollowerStatus, MemberAddress, NodeStatus

if TYPE_CHECKING:
    from dledger.client import (
        Appender,
        AppendResult,
        AsyncClient,
        BlockingAppender,
        BlockingSession,
        Client,
        Entry,
        Limits,
        Session,
        TlsFiles,
    )

__all__ = [
    "AppendResult",
    "Appender",
    "AsyncClient",
    "BlockingAppender",
    "BlockingSession",
    "Client",
    "Code",
    "ConfigError",
    "DLedgerError",
    "ElectionEvent",
    "Entry",
    "FollowerStatus",
    "Indeterminate",
    "InvalidRequest",
    "Limits",
    "MemberAddress",
    "NodeStatus",
    "NotLeader",
    "Overloaded",
    "ReadFailed",
    "Refused",
    "Session",
    "SessionExpired",
    "StorageError",
    "TlsFiles",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("dledger.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
