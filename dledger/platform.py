"""The second face: parts of a node for programs that are built like one, as the broker is.

Ports with limits (gRPC, HTTP, TCP), TLS and who may speak, turns of the event loop, files and disks, logs and
metrics, and what commands print. These names change with the node: a release may rename them, and the
list of changes says so. Programs that use the log need `dledger` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.imported_names import imported_names

if TYPE_CHECKING:
    from dledger.addresses import host_of, join_address, split_address
    from dledger.cli.client_options import parse_servers, tls_files
    from dledger.cli.exits import Exit
    from dledger.cli.output import print_json, print_table
    from dledger.client.loop_thread import LoopThread
    from dledger.core.term_allowance import MAX_TERM_ADVANCE
    from dledger.core.values import ENTRY_HEADER_SIZE, MAX_TERM
    from dledger.error_advice import LOG_ADVICE, Advice
    from dledger.errors import NumberedError
    from dledger.logs import configure_logging, get_logger
    from dledger.metrics import Histogram, NodeMetrics
    from dledger.node.loop.polling import when_idle
    from dledger.node.loop.threads import in_thread
    from dledger.node.loop.watchdog import LoopWatchdog
    from dledger.node.program_ports import ProgramPorts
    from dledger.node.role_events import RoleEvents
    from dledger.node.setup.config import is_loopback, parse_config
    from dledger.node.setup.config_faults import read_toml, validate
    from dledger.node.setup.libraries import silence_grpc
    from dledger.node.setup.secret_file import load_secret
    from dledger.node.setup.trace import NodeTrace
    from dledger.rpc.cluster_secret import ClusterSecret
    from dledger.rpc.log_client import NetworkFailure, answer_of, end_call
    from dledger.rpc.peer_names import AdminNames, PeerNames, certificate_names, normal_name
    from dledger.rpc.transport import handlers
    from dledger.rpc.transport.channels import MAX_PAYLOAD_BYTES, ChannelSecurity, open_channel
    from dledger.rpc.transport.field_count import MAX_FIELDS, has_too_many_fields
    from dledger.rpc.transport.host import GrpcHost, GrpcMethod, GrpcService
    from dledger.rpc.transport.secret_files import check_secret_file
    from dledger.rpc.transport.tls import ClientTls, ServerTls
    from dledger.shares import SharedPlaces, client_address, client_of, peer_host
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
    from dledger.store.disk import (
        Buffer,
        Disk,
        OsDisk,
        list_directory,
        make_directories,
        read_around,
        read_file,
        replace_file,
        sync_file,
        write_all,
    )
    from dledger.store.handle_cache import HandleCache
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
    "Buffer",
    "ChannelSecurity",
    "ClientTls",
    "ClusterSecret",
    "Disk",
    "Exit",
    "GrpcHost",
    "GrpcMethod",
    "GrpcService",
    "HandleCache",
    "Histogram",
    "HttpServer",
    "Listener",
    "LoopThread",
    "LoopWatchdog",
    "NetworkFailure",
    "NodeMetrics",
    "NodeTrace",
    "NumberedError",
    "OfflineLog",
    "OsDisk",
    "PeerNames",
    "ProgramPorts",
    "RoleEvents",
    "ServerTls",
    "SharedPlaces",
    "StoredEntry",
    "TlsMode",
    "WakeQueue",
    "WebHandler",
    "answer_of",
    "certificate_names",
    "check_secret_file",
    "client_address",
    "client_of",
    "configure_logging",
    "descriptors",
    "end_call",
    "get_logger",
    "handlers",
    "has_too_many_fields",
    "host_of",
    "in_thread",
    "is_loopback",
    "join_address",
    "json_answer",
    "large_turns",
    "list_directory",
    "load_secret",
    "make_directories",
    "metrics_answer",
    "normal_name",
    "open_channel",
    "page_file",
    "parse_config",
    "parse_servers",
    "peer_host",
    "print_json",
    "print_table",
    "raise_limit",
    "read_around",
    "read_file",
    "read_toml",
    "replace_file",
    "serve_web",
    "settle",
    "silence_grpc",
    "split_address",
    "static",
    "sync_file",
    "tls_files",
    "validate",
    "wake_queue",
    "when_idle",
    "write_all",
]

if not TYPE_CHECKING:  # with a __getattr__ in sight, a type checker believes in any name
    __getattr__ = imported_names(
        __name__,
        {
            "host_of": "dledger.addresses",
            "in_thread": "dledger.node.loop.threads",
            "join_address": "dledger.addresses",
            "split_address": "dledger.addresses",
            "AdminNames": "dledger.rpc.peer_names",
            "AdmittedConnection": "dledger.status.listener",
            "Advice": "dledger.error_advice",
            "Buffer": "dledger.store.disk",
            "ChannelSecurity": "dledger.rpc.transport.channels",
            "ClusterSecret": "dledger.rpc.cluster_secret",
            "ClientTls": "dledger.rpc.transport.tls",
            "Disk": "dledger.store.disk",
            "ENTRY_HEADER_SIZE": "dledger.core.values",
            "Exit": "dledger.cli.exits",
            "GrpcHost": "dledger.rpc.transport.host",
            "GrpcMethod": "dledger.rpc.transport.host",
            "GrpcService": "dledger.rpc.transport.host",
            "HandleCache": "dledger.store.handle_cache",
            "Histogram": "dledger.metrics",
            "HttpServer": "dledger.status.web",
            "LARGE_BYTES": "dledger.turns",
            "LOG_ADVICE": "dledger.error_advice",
            "Listener": "dledger.status.listener",
            "LoopThread": "dledger.client.loop_thread",
            "LoopWatchdog": "dledger.node.loop.watchdog",
            "MAX_FIELDS": "dledger.rpc.transport.field_count",
            "MAX_PAYLOAD_BYTES": "dledger.rpc.transport.channels",
            "MAX_TERM": "dledger.core.values",
            "MAX_TERM_ADVANCE": "dledger.core.term_allowance",
            "NumberedError": "dledger.errors",
            "NetworkFailure": "dledger.rpc.log_client",
            "NodeTrace": "dledger.node.setup.trace",
            "NodeMetrics": "dledger.metrics",
            "OfflineLog": "dledger.store.offline.inspect",
            "OsDisk": "dledger.store.disk",
            "PRIVATE_DIRECTORY": "dledger.store.descriptors",
            "PeerNames": "dledger.rpc.peer_names",
            "ProgramPorts": "dledger.node.program_ports",
            "RoleEvents": "dledger.node.role_events",
            "ServerTls": "dledger.rpc.transport.tls",
            "SharedPlaces": "dledger.shares",
            "StoredEntry": "dledger.store.offline.inspect",
            "TlsMode": "dledger.status.listener",
            "WakeQueue": "dledger.turns",
            "WebHandler": "dledger.status.web",
            "answer_of": "dledger.rpc.log_client",
            "certificate_names": "dledger.rpc.peer_names",
            "check_secret_file": "dledger.rpc.transport.secret_files",
            "client_address": "dledger.shares",
            "client_of": "dledger.shares",
            "configure_logging": "dledger.logs",
            "descriptors": "dledger.store.descriptors",
            "end_call": "dledger.rpc.log_client",
            "get_logger": "dledger.logs",
            "handlers": "dledger.rpc.transport",
            "has_too_many_fields": "dledger.rpc.transport.field_count",
            "is_loopback": "dledger.node.setup.config",
            "json_answer": "dledger.status.web",
            "large_turns": "dledger.turns",
            "list_directory": "dledger.store.disk",
            "load_secret": "dledger.node.setup.secret_file",
            "make_directories": "dledger.store.disk",
            "metrics_answer": "dledger.status.web",
            "normal_name": "dledger.rpc.peer_names",
            "open_channel": "dledger.rpc.transport.channels",
            "page_file": "dledger.status.web",
            "parse_config": "dledger.node.setup.config",
            "parse_servers": "dledger.cli.client_options",
            "peer_host": "dledger.shares",
            "print_json": "dledger.cli.output",
            "print_table": "dledger.cli.output",
            "raise_limit": "dledger.store.descriptors",
            "read_around": "dledger.store.disk",
            "read_file": "dledger.store.disk",
            "read_toml": "dledger.node.setup.config_faults",
            "replace_file": "dledger.store.disk",
            "serve_web": "dledger.status.web",
            "settle": "dledger.turns",
            "silence_grpc": "dledger.node.setup.libraries",
            "static": "dledger.status.web",
            "sync_file": "dledger.store.disk",
            "tls_files": "dledger.cli.client_options",
            "validate": "dledger.node.setup.config_faults",
            "wake_queue": "dledger.turns",
            "when_idle": "dledger.node.loop.polling",
            "write_all": "dledger.store.disk",
        },
    )
