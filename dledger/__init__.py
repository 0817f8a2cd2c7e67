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
    from dledger.cli.client_options import parse_servers, tls_files
    from dledger.cli.exits import Exit
    from dledger.cli.output import print_json, print_table
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
    from dledger.core.values import ENTRY_HEADER_SIZE, Role
    from dledger.error_advice import LOG_ADVICE, Advice
    from dledger.logs import configure_logging, get_logger
    from dledger.metrics import Histogram
    from dledger.node.loop.polling import when_idle
    from dledger.node.loop.watchdog import LoopWatchdog
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
    from dledger.node.setup.config import NodeConfig, is_loopback, load_config, parse_config
    from dledger.node.setup.config_faults import read_toml, validate
    from dledger.node.setup.secret_file import load_secret
    from dledger.node.setup.trace import NodeTrace
    from dledger.replica.owned_append import Assigned
    from dledger.replica.shell import AppendOutcome
    from dledger.rpc.log_client import NetworkFailure, answer_of, end_call
    from dledger.rpc.peer_names import AdminNames, PeerNames, certificate_names, normal_name
    from dledger.rpc.transport import handlers
    from dledger.rpc.transport.channels import MAX_PAYLOAD_BYTES, ChannelSecurity, open_channel
    from dledger.rpc.transport.field_count import MAX_FIELDS, has_too_many_fields
    from dledger.rpc.transport.host import GrpcHost, GrpcMethod, GrpcService
    from dledger.rpc.transport.secret_files import check_secret_file
    from dledger.rpc.transport.tls import ClientTls, ServerTls
    from dledger.status.connections import client_address
    from dledger.status.listener import AdmittedConnection, Listener, TlsMode
    from dledger.status.web import (
        HttpServer,
        WebHandler,
        json_answer,
        metrics_answer,
        page_file,
        serve_web,
        static,
    )
    from dledger.store.descriptors import PRIVATE_DIRECTORY, descriptors, raise_limit
    from dledger.store.disk import Disk, OsDisk, read_file, replace_file
    from dledger.store.offline.inspect import OfflineLog, StoredEntry
    from dledger.turns import LARGE_BYTES, WakeQueue, large_turns, settle, wake_queue

__all__ = [
    "ENTRY_HEADER_SIZE",
    "LARGE_BYTES",
    "LOG_ADVICE",
    "MAX_FIELDS",
    "MAX_PAYLOAD_BYTES",
    "MAX_TERM",
    "MAX_TERM_ADVANCE",
    "PRIVATE_DIRECTORY",
    "AdminNames",
    "AdmittedConnection",
    "Advice",
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
    "Disk",
    "DurableStateMachine",
    "ElectionEvent",
    "Entry",
    "EntryRun",
    "Exit",
    "FollowerStatus",
    "GrpcHost",
    "GrpcMethod",
    "GrpcService",
    "Histogram",
    "HttpServer",
    "ImageRefused",
    "Indeterminate",
    "InvalidRequest",
    "Limits",
    "Listener",
    "LoopThread",
    "LoopWatchdog",
    "MemberAddress",
    "NetworkFailure",
    "NodeConfig",
    "NodeServer",
    "NodeStatus",
    "NodeTrace",
    "NotLeader",
    "OfflineLog",
    "OsDisk",
    "Overloaded",
    "PeerNames",
    "Program",
    "ReadFailed",
    "Refused",
    "Role",
    "RoleEvent",
    "ServerTls",
    "Session",
    "SessionExpired",
    "StateMachine",
    "StorageError",
    "StoredEntry",
    "TlsFiles",
    "TlsMode",
    "WakeQueue",
    "WebHandler",
    "answer_of",
    "certificate_names",
    "check_secret_file",
    "client_address",
    "configure_logging",
    "descriptors",
    "end_call",
    "get_logger",
    "handlers",
    "has_too_many_fields",
    "is_loopback",
    "json_answer",
    "large_turns",
    "load_config",
    "load_secret",
    "metrics_answer",
    "normal_name",
    "open_channel",
    "page_file",
    "parse_config",
    "parse_servers",
    "print_json",
    "print_table",
    "raise_limit",
    "read_file",
    "read_toml",
    "replace_file",
    "serve_web",
    "settle",
    "static",
    "tls_files",
    "validate",
    "wake_queue",
    "when_idle",
]


#: Where a name is, unless `dledger.client` has it.
_MODULE_OF = {
    "Advice": "dledger.error_advice",
    "LOG_ADVICE": "dledger.error_advice",
    "AppendOutcome": "dledger.replica.shell",
    "Applied": "dledger.node.machine.state_machine",
    "AppliedEntry": "dledger.node.machine.state_machine",
    "Assigned": "dledger.replica.owned_append",
    "ChannelSecurity": "dledger.rpc.transport.channels",
    "ClientTls": "dledger.rpc.transport.tls",
    "Disk": "dledger.store.disk",
    "DurableStateMachine": "dledger.node.machine.state_machine",
    "ImageRefused": "dledger.node.machine.state_machine",
    "EntryRun": "dledger.node.machine.entry_run",
    "Exit": "dledger.cli.exits",
    "GrpcHost": "dledger.rpc.transport.host",
    "GrpcMethod": "dledger.rpc.transport.host",
    "GrpcService": "dledger.rpc.transport.host",
    "Histogram": "dledger.metrics",
    "HttpServer": "dledger.status.web",
    "LoopThread": "dledger.client.loop_thread",
    "MAX_PAYLOAD_BYTES": "dledger.rpc.transport.channels",
    "MAX_FIELDS": "dledger.rpc.transport.field_count",
    "has_too_many_fields": "dledger.rpc.transport.field_count",
    "NetworkFailure": "dledger.rpc.log_client",
    "NodeConfig": "dledger.node.setup.config",
    "NodeServer": "dledger.node.server",
    "NodeTrace": "dledger.node.setup.trace",
    "OfflineLog": "dledger.store.offline.inspect",
    "OsDisk": "dledger.store.disk",
    "PeerNames": "dledger.rpc.peer_names",
    "AdminNames": "dledger.rpc.peer_names",
    "load_secret": "dledger.node.setup.secret_file",
    "certificate_names": "dledger.rpc.peer_names",
    "normal_name": "dledger.rpc.peer_names",
    "ENTRY_HEADER_SIZE": "dledger.core.values",
    "MAX_TERM": "dledger.core.values",
    "MAX_TERM_ADVANCE": "dledger.core.term_allowance",
    "Program": "dledger.node.program",
    "Role": "dledger.core.values",
    "RoleEvent": "dledger.node.role_events",
    "ServerTls": "dledger.rpc.transport.tls",
    "StateMachine": "dledger.node.machine.state_machine",
    "StoredEntry": "dledger.store.offline.inspect",
    "TlsFiles": "dledger.rpc.transport.tls",
    "WebHandler": "dledger.status.web",
    "answer_of": "dledger.rpc.log_client",
    "configure_logging": "dledger.logs",
    "end_call": "dledger.rpc.log_client",
    "get_logger": "dledger.logs",
    "is_loopback": "dledger.node.setup.config",
    "json_answer": "dledger.status.web",
    "load_config": "dledger.node.setup.config",
    "metrics_answer": "dledger.status.web",
    "open_channel": "dledger.rpc.transport.channels",
    "page_file": "dledger.status.web",
    "parse_config": "dledger.node.setup.config",
    "parse_servers": "dledger.cli.client_options",
    "print_json": "dledger.cli.output",
    "print_table": "dledger.cli.output",
    "read_file": "dledger.store.disk",
    "read_toml": "dledger.node.setup.config_faults",
    "replace_file": "dledger.store.disk",
    "check_secret_file": "dledger.rpc.transport.secret_files",
    "serve_web": "dledger.status.web",
    "static": "dledger.status.web",
    "tls_files": "dledger.cli.client_options",
    "validate": "dledger.node.setup.config_faults",
    "PRIVATE_DIRECTORY": "dledger.store.descriptors",
    "descriptors": "dledger.store.descriptors",
    "raise_limit": "dledger.store.descriptors",
    "AdmittedConnection": "dledger.status.listener",
    "Listener": "dledger.status.listener",
    "TlsMode": "dledger.status.listener",
    "client_address": "dledger.status.connections",
    "when_idle": "dledger.node.loop.polling",
    "WakeQueue": "dledger.turns",
    "LARGE_BYTES": "dledger.turns",
    "large_turns": "dledger.turns",
    "settle": "dledger.turns",
    "wake_queue": "dledger.turns",
    "LoopWatchdog": "dledger.node.loop.watchdog",
}
#: Names that are modules themselves.
_MODULES = {"handlers": "dledger.rpc.transport.handlers"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in __all__:
        return getattr(import_module(_MODULE_OF.get(name, "dledger.client")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
