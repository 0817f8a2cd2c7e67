"""Nodes with an injectable disk and clock: the factory for `[program]` in a node's configuration.

Settings: `folder`, for orders, counters and record; `factory` and `settings` of the program to run on the
node, if any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from chaos.injection.disk import FaultInjectingDisk
from chaos.injection.orders import Counters, InjectedEffect, OrderFile
from dledger import ConfigError, NodeConfig, NodeServer
from dledger.node.program import load_program
from dledger.node.setup.config import ProgramConfig


class _MakesNodes(Protocol):
    """A program whose node accepts additional options."""

    def make_node(self, **options: Any) -> NodeServer: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class BareNode:
    """Implements `dledger.Program`: runs a node that has no other program."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config

    def make_node(self, **options: Any) -> NodeServer:
        return NodeServer(self._config, **options)

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return


class FaultInjectingNode:
    """Implements `dledger.Program`: runs another program on a node with an injectable disk and clock."""

    def __init__(self, program: _MakesNodes, directory: Path, folder: Path) -> None:
        self._program = program
        self._directory = directory
        self._folder = folder

    def make_node(self) -> NodeServer:
        return self._program.make_node(
            disk=FaultInjectingDisk(self._directory, self._folder), wall_ms=injected_clock(self._folder)
        )

    async def start(self) -> None:
        await self._program.start()

    async def stop(self) -> None:
        await self._program.stop()


def injected_clock(folder: Path) -> Callable[[], int]:
    """Return a wall clock in ms whose error is the ordered offset."""
    orders, counters = OrderFile(folder), Counters(folder)

    def now_ms() -> int:
        off = orders.now().clock_ms
        if off:
            counters.add(InjectedEffect.WRONG_TIME)
        return time.time_ns() // 1_000_000 + off

    return now_ms


def program(config: NodeConfig, settings: Mapping[str, Any]) -> FaultInjectingNode:
    """Create the program from its settings. Raises ConfigError if `folder` is missing."""
    if "folder" not in settings:
        raise ConfigError("program.settings lacks the key 'folder'")
    folder = Path(settings["folder"])
    folder.mkdir(exist_ok=True)
    inner: Any = None
    if "factory" in settings:
        inside = ProgramConfig(factory=settings["factory"], settings=settings.get("settings", {}))
        inner = load_program(config.model_copy(update={"program": inside}))
    return FaultInjectingNode(inner or BareNode(config), config.directory, folder)
