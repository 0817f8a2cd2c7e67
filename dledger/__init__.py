"""A replicated, durable, checkable commit log.

All names of this package that programs may use: the client's, and those of a node with a state machine of the
program's own. They are imported when first asked for, so that `import dledger` alone (a command line, the
pure core) does not load gRPC.
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
    from dledger.core.values import Role
    from dledger.node.config import NodeConfig, load_config, parse_config
    from dledger.node.owned_append import Assigned
    from dledger.node.owner import GrpcService
    from dledger.node.program import Program
    from dledger.node.role_events import RoleEvent
    from dledger.node.server import NodeServer
    from dledger.node.shell import AppendOutcome
    from dledger.node.state_machine import Applied, AppliedEntry, DurableStateMachine, StateMachine

__all__ = [
    "AppendOutcome",
    "AppendResult",
    "Appender",
    "Applied",
    "AppliedEntry",
    "Assigned",
    "AsyncClient",
    "BlockingAppender",
    "BlockingSession",
    "Client",
    "Code",
    "ConfigError",
    "DLedgerError",
    "DurableStateMachine",
    "ElectionEvent",
    "Entry",
    "FollowerStatus",
    "GrpcService",
    "Indeterminate",
    "InvalidRequest",
    "Limits",
    "MemberAddress",
    "NodeConfig",
    "NodeServer",
    "NodeStatus",
    "NotLeader",
    "Overloaded",
    "Program",
    "ReadFailed",
    "Refused",
    "Role",
    "RoleEvent",
    "Session",
    "SessionExpired",
    "StateMachine",
    "StorageError",
    "TlsFiles",
    "load_config",
    "parse_config",
]


_OF_NODES = {
    "AppendOutcome": "dledger.node.shell",
    "AppliedEntry": "dledger.node.state_machine",
    "Assigned": "dledger.node.owned_append",
    "GrpcService": "dledger.node.owner",
    "Applied": "dledger.node.state_machine",
    "DurableStateMachine": "dledger.node.state_machine",
    "NodeConfig": "dledger.node.config",
    "NodeServer": "dledger.node.server",
    "Program": "dledger.node.program",
    "Role": "dledger.core.values",
    "RoleEvent": "dledger.node.role_events",
    "StateMachine": "dledger.node.state_machine",
    "load_config": "dledger.node.config",
    "parse_config": "dledger.node.config",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_OF_NODES.get(name, "dledger.client")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
