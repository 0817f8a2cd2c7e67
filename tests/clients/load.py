"""A scenario of released clients that goes on while faults happen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from types import TracebackType
from typing import Any, Self

from tests.clients import installed


class Load:
    """The driver's process, from "begun" to the end of the `with` block. `tell_over` ends its input; `finish`
    does so, too, and returns what it prints then."""

    def __init__(self, client: str, home: Path, address: str, scenario: str, **options: Any) -> None:
        self._errors = home.with_suffix(".stderr")
        self._arguments = (client, home, address, scenario, options)

    def __enter__(self) -> Self:
        self._driver: Popen[str] = installed.start(*self._arguments, errors=self._errors)
        assert self._driver.stdout is not None
        assert self._driver.stdout.readline().strip() == "begun", self._said()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.kill()
        self._driver.communicate()

    def tell_over(self) -> None:
        """The faults are over."""
        if self._driver.stdin is not None:
            self._driver.stdin.close()
            self._driver.stdin = None

    def finish(self) -> Any:
        """What the scenario has seen."""
        self.tell_over()
        said, _ = self._driver.communicate(timeout=installed.SCENARIO_S)
        assert self._driver.returncode == 0, said + self._said()
        return json.loads(said.splitlines()[-1])

    def _said(self) -> str:
        return self._errors.read_text()[-4000:]


class Loads:
    """One of each client, at the same time; otherwise as Load."""

    def __init__(
        self, clients: Sequence[str], directory: Path, address: str, scenario: str, **options: Any
    ) -> None:
        self._loads = {
            client: Load(client, directory / client, address, scenario, **options) for client in clients
        }

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for load in self._loads.values():
                stack.enter_context(load)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def finish(self) -> dict[str, Any]:
        """By client."""
        for load in self._loads.values():
            load.tell_over()
        return {client: load.finish() for client, load in self._loads.items()}
