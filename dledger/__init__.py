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
    from dledger.client.loop_thread import LoopThread
    from dledger.core.values import Role
    from dledger.node.config import NodeConfig, load_config, parse_config
    from dledger.node.owned_append import Assigned
    from dledger.node.owner import GrpcService
    from dledger.node.program import Program
    from dledger.node.role_events import RoleEvent
    from dledger.node.server import NodeServer
    from dledger.node.shell import AppendOutcome
    from dledger.node.state_machine import Applied, AppliedEntry, DurableStateMachine, StateMachine
    from dledger.rpc import handlers
    from dledger.rpc.channels import MAX_PAYLOAD_BYTES, ChannelSecurity, open_channel
    from dledger.rpc.log_client import NetworkFailure, answer_of, end_call
    from dledger.rpc.tls import ClientTls

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "AppendOutcome",
    "AppendResult",
    "Appender",
    "Applied",
    "AppliedEntry",
    "Assigned",
    "AsyncClient",
    "BlockingAppender",
    "BlockingSession",
    "ChannelSecurity",
    "Client",
    "ClientTls",
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
    "LoopThread",
    "MemberAddress",
    "NetworkFailure",
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
    "answer_of",
    "end_call",
    "handlers",
    "load_config",
    "open_channel",
    "parse_config",
]


#: Where a name is, unless `dledger.client` has it.
_MODULE_OF = {
    "AppendOutcome": "dledger.node.shell",
    "Applied": "dledger.node.state_machine",
    "AppliedEntry": "dledger.node.state_machine",
    "Assigned": "dledger.node.owned_append",
    "ChannelSecurity": "dledger.rpc.channels",
    "ClientTls": "dledger.rpc.tls",
    "DurableStateMachine": "dledger.node.state_machine",
    "GrpcService": "dledger.node.owner",
    "LoopThread": "dledger.client.loop_thread",
    "MAX_PAYLOAD_BYTES": "dledger.rpc.channels",
    "NetworkFailure": "dledger.rpc.log_client",
    "NodeConfig": "dledger.node.config",
    "NodeServer": "dledger.node.server",
    "Program": "dledger.node.program",
    "Role": "dledger.core.values",
    "RoleEvent": "dledger.node.role_events",
    "StateMachine": "dledger.node.state_machine",
    "answer_of": "dledger.rpc.log_client",
    "end_call": "dledger.rpc.log_client",
    "load_config": "dledger.node.config",
    "open_channel": "dledger.rpc.channels",
    "parse_config": "dledger.node.config",
}
#: Names that are modules themselves.
_MODULES = {"handlers": "dledger.rpc.handlers"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in __all__:
        return getattr(import_module(_MODULE_OF.get(name, "dledger.client")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
