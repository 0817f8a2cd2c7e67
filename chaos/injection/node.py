"""Nodes whose disk and clock can be made faulty: the factory for `[program]` in a node's configuration.

Settings: `folder` (of orders, counters and record); `factory` and `settings` of the program that runs on the
node beside, if there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from chaos.injection.disk import FaultInjectingDisk
from chaos.injection.orders import Counters, Did, OrderFile
from dledger import ConfigError, NodeConfig, NodeServer
from dledger.node.program import load_program
from dledger.node.setup.config import ProgramConfig


class _MakesNodes(Protocol):
    """A program whose node can be given further options."""

    def make_node(self, **options: Any) -> NodeServer: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class BareNode:
    """Implements `dledger.Program`: a node with nothing on it."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config

    def make_node(self, **options: Any) -> NodeServer:
        return NodeServer(self._config, **options)

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return


class FaultInjectingNode:
    """Implements `dledger.Program`: another program, on a node with another disk and another clock."""

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
    """Wall clock time in ms, as wrong as it is ordered to be."""
    orders, counters = OrderFile(folder), Counters(folder)

    def now_ms() -> int:
        off = orders.now().clock_ms
        if off:
            counters.add(Did.WRONG_TIME)
        return time.time_ns() // 1_000_000 + off

    return now_ms


def program(config: NodeConfig, settings: Mapping[str, Any]) -> FaultInjectingNode:
    """The factory."""
    if "folder" not in settings:
        raise ConfigError("program.settings lacks 'folder'")
    folder = Path(settings["folder"])
    folder.mkdir(exist_ok=True)
    inner: Any = None
    if "factory" in settings:
        inside = ProgramConfig(factory=settings["factory"], settings=settings.get("settings", {}))
        inner = load_program(config.model_copy(update={"program": inside}))
    return FaultInjectingNode(inner or BareNode(config), config.directory, folder)
