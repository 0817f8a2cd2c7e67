"""A program for the tests: it lives on the node, and says on stderr what happens to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dledger import ConfigError, NodeConfig, NodeServer
from examples.kv import KeyValueStore


class EchoProgram:
    """Implements dledger.Program."""

    def __init__(self, config: NodeConfig, settings: Mapping[str, Any]) -> None:
        unknown = sorted(set(settings) - {"word", "fails"})
        if unknown:
            raise ConfigError(f"program.settings: {unknown[0]} is unknown; valid are word, fails")
        self._config, self._settings = config, settings
        self._store = KeyValueStore()
        self._node: NodeServer | None = None

    def make_node(self) -> NodeServer:
        self._node = NodeServer(self._config, self._store)
        return self._node

    async def start(self) -> None:
        assert self._node is not None
        print(f"{self._settings['word']} begins on {self._node.address}", file=sys.stderr)
        if self._settings.get("fails"):
            raise ConfigError("this program was told to fail")

    async def stop(self) -> None:
        assert self._node is not None
        await self._node.wait_applied()
        print(f"{self._settings['word']} ends with {self._store.get('colour')}", file=sys.stderr)
