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
    from dledger.node.config import NodeConfig, is_loopback, load_config, parse_config
    from dledger.node.config_faults import read_toml, validate
    from dledger.node.logs import configure_logging, get_logger
    from dledger.node.server import NodeServer
    from dledger.node.state_machine import AppliedEntry, StateMachine
    from dledger.rpc.channels import ChannelSecurity, open_channel
    from dledger.rpc.host import GrpcHost, GrpcMethod
    from dledger.rpc.log_client import NetworkFailure, answer_of
    from dledger.rpc.tls import ClientTls, ServerTls
    from dledger.status.web import (
        HttpServer,
        WebHandler,
        json_answer,
        metrics_answer,
        page_file,
        serve_web,
        static,
    )
    from dledger.store.disk import Disk, OsDisk, read_file, replace_file

__all__ = [
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
    "Disk",
    "ElectionEvent",
    "Entry",
    "Exit",
    "FollowerStatus",
    "GrpcHost",
    "GrpcMethod",
    "HttpServer",
    "Indeterminate",
    "InvalidRequest",
    "Limits",
    "MemberAddress",
    "NetworkFailure",
    "NodeConfig",
    "NodeServer",
    "NodeStatus",
    "NotLeader",
    "OsDisk",
    "Overloaded",
    "ReadFailed",
    "Refused",
    "ServerTls",
    "Session",
    "SessionExpired",
    "StateMachine",
    "StorageError",
    "TlsFiles",
    "WebHandler",
    "answer_of",
    "configure_logging",
    "get_logger",
    "is_loopback",
    "json_answer",
    "load_config",
    "metrics_answer",
    "open_channel",
    "page_file",
    "parse_config",
    "parse_servers",
    "print_json",
    "print_table",
    "read_file",
    "read_toml",
    "replace_file",
    "serve_web",
    "static",
    "tls_files",
    "validate",
]


_OF_NODES = {
    "AppliedEntry": "dledger.node.state_machine",
    "NodeConfig": "dledger.node.config",
    "NodeServer": "dledger.node.server",
    "StateMachine": "dledger.node.state_machine",
    "load_config": "dledger.node.config",
    "parse_config": "dledger.node.config",
}

#: For servers and commands beside the log: gRPC, HTTP, TLS, files, configuration, logging, output.
_OF_TOOLS = {
    "ChannelSecurity": "dledger.rpc.channels",
    "ClientTls": "dledger.rpc.tls",
    "Disk": "dledger.store.disk",
    "Exit": "dledger.cli.exits",
    "GrpcHost": "dledger.rpc.host",
    "GrpcMethod": "dledger.rpc.host",
    "HttpServer": "dledger.status.web",
    "NetworkFailure": "dledger.rpc.log_client",
    "OsDisk": "dledger.store.disk",
    "ServerTls": "dledger.rpc.tls",
    "WebHandler": "dledger.status.web",
    "answer_of": "dledger.rpc.log_client",
    "configure_logging": "dledger.node.logs",
    "get_logger": "dledger.node.logs",
    "is_loopback": "dledger.node.config",
    "json_answer": "dledger.status.web",
    "metrics_answer": "dledger.status.web",
    "open_channel": "dledger.rpc.channels",
    "page_file": "dledger.status.web",
    "parse_servers": "dledger.cli.client_options",
    "print_json": "dledger.cli.output",
    "print_table": "dledger.cli.output",
    "read_file": "dledger.store.disk",
    "read_toml": "dledger.node.config_faults",
    "replace_file": "dledger.store.disk",
    "serve_web": "dledger.status.web",
    "static": "dledger.status.web",
    "tls_files": "dledger.cli.client_options",
    "validate": "dledger.node.config_faults",
}

_HOMES = _OF_NODES | _OF_TOOLS


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "dledger.client")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
