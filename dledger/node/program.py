"""Programs on a node: the factory named by `[program]` in a node's configuration.

A program creates the node (with its state machine, its gRPC services and other options of NodeServer), is
started once the node serves, and stopped before the node. `dledger server` handles signals, logs and exit
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
    """The node run by `dledger server`: a NodeServer, or a program's own node with another log."""

    @property
    def config(self) -> NodeConfig: ...

    @property
    def metrics(self) -> NodeMetrics: ...

    @property
    def is_released(self) -> bool:
        """Return True unless a stuck disk still holds resources of the node."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Program(Protocol):
    """A program created by a factory `(NodeConfig, settings) -> Program`.

    Settings are `[program.settings]`; the factory raises ConfigError for invalid ones.
    """

    def make_node(self) -> ServedNode:
        """Create the node, without starting it."""

    async def start(self) -> None:
        """Start the program on the started node. An exception stops the node and ends the process."""

    async def stop(self) -> None:
        """Stop the program, in bounded time, while the node still serves."""


Factory = Callable[[NodeConfig, Mapping[str, Any]], Program]


def load_program(config: NodeConfig) -> Program | None:
    """Create the program that the configuration names, or return None if it names none. Raises
    ConfigError."""
    if config.program is None:
        return None
    name = config.program.factory
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"program.factory is {name!r}: expected MODULE:FACTORY", code=Code.CONFIG_INVALID)
    try:
        factory: Factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"program.factory {name}: cannot load it: {error}", code=Code.CONFIG_INVALID
        ) from error
    return factory(config, config.program.settings)
