"""A replicated, durable, checkable commit log.

All names of this package that programs may use: the client's, those of a node with a state machine of the
program's own, and those of gRPC services and clients beside it. They are imported when first asked for, so
that `import dledger` alone (a command line, the pure core) does not load gRPC.
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
    from dledger.node.config import NodeConfig, load_config, parse_config
    from dledger.node.server import NodeServer
    from dledger.node.state_machine import AppliedEntry, StateMachine
    from dledger.rpc import handlers
    from dledger.rpc.channels import MAX_PAYLOAD_BYTES, ChannelSecurity, open_channel
    from dledger.rpc.log_client import NetworkFailure, answer_of, end_call
    from dledger.rpc.tls import ClientTls

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "AppendResult",
    "Appender",
    "AppliedEntry",
    "AsyncClient",
    "BlockingAppender",
    "BlockingSession",
    "ChannelSecurity",
    "Client",
    "ClientTls",
    "Code",
    "ConfigError",
    "DLedgerError",
    "ElectionEvent",
    "Entry",
    "FollowerStatus",
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
    "ReadFailed",
    "Refused",
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
    "MAX_PAYLOAD_BYTES": "dledger.rpc.channels",
    "AppliedEntry": "dledger.node.state_machine",
    "ChannelSecurity": "dledger.rpc.channels",
    "ClientTls": "dledger.rpc.tls",
    "LoopThread": "dledger.client.loop_thread",
    "NetworkFailure": "dledger.rpc.log_client",
    "NodeConfig": "dledger.node.config",
    "NodeServer": "dledger.node.server",
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
