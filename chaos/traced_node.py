"""Nodes that write a trace of what they do: factories for `[program]` in a node's configuration.

Settings: `trace_directory` and `trace_run`, and those of the broker where there is one.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_adapter.program import BrokerProgram
from broker_adapter.settings import parse_settings
from chaos.trace.schema import LEDGER, Ev
from chaos.trace.writer import TraceWriter
from dledger import ConfigError, NodeConfig, NodeServer

_OF_LEDGER = frozenset({"append", "truncate", "flush", "recover", "install", "purge", "commit", "ack"})


class NodeTraceFile:
    """Implements `dledger.NodeTrace`. Events reach the file at the end of the turn of the event loop in which
    they are told. What a node says goes out in later turns, so whatever others have seen of a node that is
    killed is in its trace."""

    def __init__(self, run_directory: Path, run: str) -> None:
        self._run_directory = run_directory
        self._run = run
        self._node_id = ""
        self._writer: TraceWriter | None = None
        self._flushing = False

    def begin(self, node_id: str, incarnation: int) -> None:
        self._node_id = node_id
        self._writer = TraceWriter(self._run_directory, self._run, f"node:{node_id}", incarnation)
        # The node still has things to tell after its program was stopped.
        atexit.register(self._writer.close)

    def event(self, ev: str, e: str, fields: dict[str, Any]) -> None:
        assert self._writer is not None, "an event before the beginning"
        ledger = {"ledger": LEDGER} if e in _OF_LEDGER else {}
        self._writer.write(Ev(ev), {"e": e, "node": self._node_id, **fields, **ledger})
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._writer is not None:
            self._writer.flush()


class TracedLog:
    """Implements `dledger.Program`: a node with nothing on it but the trace."""

    def __init__(self, config: NodeConfig, trace: NodeTraceFile) -> None:
        self._config = config
        self._trace = trace

    def make_node(self) -> NodeServer:
        return NodeServer(self._config, trace=self._trace)

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return


class TracedBroker(BrokerProgram):
    """A broker whose node is traced."""

    def __init__(self, config: NodeConfig, settings: Mapping[str, Any], trace: NodeTraceFile) -> None:
        super().__init__(config, parse_settings(settings))
        self._trace = trace

    def make_node(self, **options: Any) -> NodeServer:
        return super().make_node(trace=self._trace, **options)


def log(config: NodeConfig, settings: Mapping[str, Any]) -> TracedLog:
    """The factory of nodes without brokers."""
    trace, _ = _trace_of(settings)
    return TracedLog(config, trace)


def broker(config: NodeConfig, settings: Mapping[str, Any]) -> TracedBroker:
    """The factory of nodes with brokers."""
    trace, rest = _trace_of(settings)
    return TracedBroker(config, rest, trace)


def _trace_of(settings: Mapping[str, Any]) -> tuple[NodeTraceFile, dict[str, Any]]:
    rest = dict(settings)
    try:
        directory, run = rest.pop("trace_directory"), rest.pop("trace_run")
    except KeyError as error:
        raise ConfigError(f"program.settings lacks {error}") from None
    return NodeTraceFile(Path(directory), str(run)), rest
