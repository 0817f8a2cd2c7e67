"""A scenario of a released client that goes on while faults happen."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import Popen
from types import TracebackType
from typing import Any, Self

from tests.clients import installed


class Load:
    """The driver's process, from "begun" to the end of the `with` block. `finish` ends its input; what it
    prints then is returned."""

    def __init__(self, client: str, home: Path, address: str, scenario: str, **options: Any) -> None:
        installed.require(client)
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

    def finish(self) -> Any:
        """What the scenario has seen."""
        said, _ = self._driver.communicate("", timeout=installed.SCENARIO_S)
        assert self._driver.returncode == 0, said + self._said()
        return json.loads(said.splitlines()[-1])

    def _said(self) -> str:
        return self._errors.read_text()[-4000:]
