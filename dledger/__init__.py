"""A replicated, durable, checkable commit log.

This package exports the names that clients need, and the names for running a node with a state machine.
Programs that open ports or store files like a node can use `dledger.infra`. Names are imported on first use,
so `import dledger` alone, as in a command line or the pure core, does not load gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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
    from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
    from dledger.core.values import RULES_VERSION, FlushMode, Role
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
    from dledger.infra.transport.host import GrpcService
    from dledger.node.machine.entry_run import EntryRun
    from dledger.node.machine.state_machine import (
        Applied,
        AppliedEntry,
        DurableStateMachine,
        ImageRefused,
        SnapshotStateMachine,
        StateMachine,
    )
    from dledger.node.program import Program
    from dledger.node.role_events import RoleEvent
    from dledger.node.server import NodeServer
    from dledger.node.setup.config import NodeConfig, load_config, parse_config
    from dledger.node.setup.directory import init_directory
    from dledger.replica.owned_append import Assigned
    from dledger.replica.shell import AppendOutcome
    from dledger.status.model import ElectionEvent, FollowerStatus, MemberAddress, NodeStatus

__all__ = [
    "RULES_VERSION",
    "AppendOutcome",
    "AppendResult",
    "Appender",
    "Applied",
    "AppliedEntry",
    "Assigned",
    "AsyncClient",
    "BlockingAppender",
    "BlockingSession",
    "ChangeKind",
    "Client",
    "Code",
    "ConfigError",
    "DLedgerError",
    "DurableStateMachine",
    "ElectionEvent",
    "Entry",
    "EntryRun",
    "FlushMode",
    "FollowerStatus",
    "GrpcService",
    "ImageRefused",
    "Indeterminate",
    "InvalidRequest",
    "Limits",
    "MemberAddress",
    "MemberStep",
    "MembershipChange",
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
    "SnapshotStateMachine",
    "StateMachine",
    "StorageError",
    "TlsFiles",
    "init_directory",
    "load_config",
    "parse_config",
]

#: The module of each name that is imported on first use.
_HOMES = {
    "AppendOutcome": "dledger.replica.shell",
    "AppendResult": "dledger.client",
    "Appender": "dledger.client",
    "Applied": "dledger.node.machine.state_machine",
    "AppliedEntry": "dledger.node.machine.state_machine",
    "Assigned": "dledger.replica.owned_append",
    "AsyncClient": "dledger.client",
    "BlockingAppender": "dledger.client",
    "BlockingSession": "dledger.client",
    "ChangeKind": "dledger.core.membership_change",
    "Client": "dledger.client",
    "Code": "dledger.errors",
    "ConfigError": "dledger.errors",
    "DLedgerError": "dledger.errors",
    "DurableStateMachine": "dledger.node.machine.state_machine",
    "SnapshotStateMachine": "dledger.node.machine.state_machine",
    "ElectionEvent": "dledger.status.model",
    "Entry": "dledger.client",
    "EntryRun": "dledger.node.machine.entry_run",
    "FlushMode": "dledger.core.values",
    "FollowerStatus": "dledger.status.model",
    "GrpcService": "dledger.infra.transport.host",
    "ImageRefused": "dledger.node.machine.state_machine",
    "Indeterminate": "dledger.errors",
    "InvalidRequest": "dledger.errors",
    "Limits": "dledger.client",
    "MemberAddress": "dledger.status.model",
    "MemberStep": "dledger.core.membership_change",
    "MembershipChange": "dledger.core.membership_change",
    "NodeConfig": "dledger.node.setup.config",
    "NodeServer": "dledger.node.server",
    "NodeStatus": "dledger.status.model",
    "NotLeader": "dledger.errors",
    "Overloaded": "dledger.errors",
    "Program": "dledger.node.program",
    "RULES_VERSION": "dledger.core.values",
    "ReadFailed": "dledger.errors",
    "Refused": "dledger.errors",
    "Role": "dledger.core.values",
    "RoleEvent": "dledger.node.role_events",
    "Session": "dledger.client",
    "SessionExpired": "dledger.errors",
    "StateMachine": "dledger.node.machine.state_machine",
    "StorageError": "dledger.errors",
    "TlsFiles": "dledger.infra.transport.tls",
    "init_directory": "dledger.node.setup.directory",
    "load_config": "dledger.node.setup.config",
    "parse_config": "dledger.node.setup.config",
}

if not TYPE_CHECKING:  # a visible __getattr__ would make type checkers accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
