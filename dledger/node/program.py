"""Programs that live on the node of their process: what `[program]` in a node's configuration names.

A program makes the node (with its state machine, its gRPC services, whatever NodeServer takes), is started
once the node serves, and stopped before the node is. `dledger server` does the rest: signals, logs, exit
codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

from dledger.errors import Code, ConfigError
from dledger.metrics import NodeMetrics
from dledger.node.setup.config import NodeConfig


class ServedNode(Protocol):
    """What `dledger server` runs: a NodeServer, or a node of the program's own, with another log."""

    @property
    def config(self) -> NodeConfig: ...

    @property
    def metrics(self) -> NodeMetrics: ...

    @property
    def is_released(self) -> bool:
        """Nothing is left that a stuck disk keeps."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Program(Protocol):
    """What a factory `(NodeConfig, settings) -> Program` returns. Settings are `[program.settings]`; the
    factory raises ConfigError for what is wrong with them."""

    def make_node(self) -> ServedNode:
        """The node, not started."""

    async def start(self) -> None:
        """The node has started. An exception stops it again, and ends the process."""

    async def stop(self) -> None:
        """The process is asked to end; the node still serves. In bounded time."""


Factory = Callable[[NodeConfig, Mapping[str, Any]], Program]


def load_program(config: NodeConfig) -> Program | None:
    """The program that the configuration names; None without one. ConfigError."""
    if config.program is None:
        return None
    name = config.program.factory
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"program.factory is {name!r}: expected MODULE:FACTORY", code=Code.CONFIG_INVALID)
    try:
        factory: Factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"program.factory {name}: {error}", code=Code.CONFIG_INVALID) from error
    return factory(config, config.program.settings)
