"""Nodes that write a trace: factories for `[program]` in a node's configuration.

Settings: `trace_directory` and `trace_run`; `later_links`, where the node reaches members that are added
later; and the settings of the broker, if any.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_adapter.config.settings import parse_settings
from broker_adapter.server.program import BrokerProgram
from chaos.trace.files import MappedFile
from chaos.trace.schema import LEDGER, Ev
from chaos.trace.writer import TraceWriter
from dledger import ConfigError, NodeConfig, NodeServer

_EV = {ev.value: ev for ev in Ev}
_OF_LEDGER = frozenset({"append", "flush", "recover", "install", "commit", "apply", "reput"})


class NodeTraceFile:
    """Implements `NodeTrace`. Each event is in the file before its effects are visible from outside, so the
    file of a killed node is complete."""

    def __init__(self, run_directory: Path, run: str) -> None:
        self._run_directory = run_directory
        self._run = run
        self._node_id = ""
        self._writer: TraceWriter | None = None

    def begin(self, node_id: str, incarnation: int) -> None:
        self._node_id = node_id
        src = f"node:{node_id}"
        self._writer = TraceWriter(self._run_directory, self._run, src, incarnation, file=MappedFile)
        # The node still reports events after its program has stopped.
        atexit.register(self._writer.close)

    def event(self, ev: str, e: str, fields: dict[str, Any]) -> None:
        assert self._writer is not None, "event before begin()"
        line = {"e": e, "node": self._node_id, **fields}
        if e in _OF_LEDGER:
            line["ledger"] = LEDGER
        self._writer.write(_EV[ev], line)


class TracedLog:
    """Implements `dledger.Program`: runs a traced node that has no other program."""

    def __init__(self, config: NodeConfig, trace: NodeTraceFile) -> None:
        self._config = config
        self._trace = trace

    def make_node(self, **options: Any) -> NodeServer:
        return NodeServer(self._config, trace=self._trace, **options)

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return


class TracedBroker(BrokerProgram):
    """A broker on a traced node."""

    def __init__(self, config: NodeConfig, settings: Mapping[str, Any], trace: NodeTraceFile) -> None:
        super().__init__(config, parse_settings(settings), trace=trace)


def log(config: NodeConfig, settings: Mapping[str, Any]) -> TracedLog:
    """Program factory of nodes without brokers."""
    trace, rest = _trace_of(settings)
    return TracedLog(_with_links(config, rest), trace)


def broker(config: NodeConfig, settings: Mapping[str, Any]) -> TracedBroker:
    """Program factory of nodes with brokers."""
    trace, rest = _trace_of(settings)
    return TracedBroker(_with_links(config, rest), rest, trace)


def _with_links(config: NodeConfig, settings: dict[str, Any]) -> NodeConfig:
    """Add the `later_links`, which a configuration file may not contain."""
    later = settings.pop("later_links", {})
    return config.model_copy(update={"peer_addresses": {**config.peer_addresses, **later}})


def _trace_of(settings: Mapping[str, Any]) -> tuple[NodeTraceFile, dict[str, Any]]:
    rest = dict(settings)
    try:
        directory, run = rest.pop("trace_directory"), rest.pop("trace_run")
    except KeyError as error:
        raise ConfigError(f"program.settings lacks the key {error}") from None
    return NodeTraceFile(Path(directory), str(run)), rest
