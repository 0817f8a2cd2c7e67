"""A replicated, durable, checkable commit log.

The public face: a client's names, and those of a node with a state machine of the program's own. Programs
that open ports, print tables or store files as a node does find these parts in `dledger.platform`. Names are
imported when first asked for, so that `import dledger` alone (a command line, the pure core) does not load
gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from dledger.imported_names import imported_names
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
    from dledger.node.machine.entry_run import EntryRun
    from dledger.node.machine.state_machine import (
        Applied,
        AppliedEntry,
        DurableStateMachine,
        ImageRefused,
        StateMachine,
    )
    from dledger.node.program import Program
    from dledger.node.role_events import RoleEvent
    from dledger.node.server import NodeServer
    from dledger.node.setup.config import NodeConfig, load_config
    from dledger.replica.owned_append import Assigned
    from dledger.replica.shell import AppendOutcome

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
    "EntryRun",
    "FollowerStatus",
    "ImageRefused",
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
]

if not TYPE_CHECKING:  # with a __getattr__ in sight, a type checker believes in any name
    __getattr__ = imported_names(
        __name__,
        {
            "AppendOutcome": "dledger.replica.shell",
            "AppendResult": "dledger.client",
            "Appender": "dledger.client",
            "Applied": "dledger.node.machine.state_machine",
            "AppliedEntry": "dledger.node.machine.state_machine",
            "Assigned": "dledger.replica.owned_append",
            "AsyncClient": "dledger.client",
            "BlockingAppender": "dledger.client",
            "BlockingSession": "dledger.client",
            "Client": "dledger.client",
            "DurableStateMachine": "dledger.node.machine.state_machine",
            "Entry": "dledger.client",
            "EntryRun": "dledger.node.machine.entry_run",
            "ImageRefused": "dledger.node.machine.state_machine",
            "Limits": "dledger.client",
            "NodeConfig": "dledger.node.setup.config",
            "NodeServer": "dledger.node.server",
            "Program": "dledger.node.program",
            "Role": "dledger.core.values",
            "RoleEvent": "dledger.node.role_events",
            "Session": "dledger.client",
            "StateMachine": "dledger.node.machine.state_machine",
            "TlsFiles": "dledger.rpc.transport.tls",
            "load_config": "dledger.node.setup.config",
        },
    )
