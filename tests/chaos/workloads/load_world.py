"""Where loads write in tests, and what they have written."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from chaos.trace.schema import problems
from chaos.trace.writer import TraceWriter
from chaos.workloads.spec import LoadSpec, Setting

Lines = list[dict[str, Any]]


class World:
    """A run directory; `lines` ends all writers and gives what they wrote, without the frame."""

    def __init__(self, folder: Path, spec: LoadSpec) -> None:
        self._folder = folder
        self._writers: list[TraceWriter] = []
        self.setting = Setting(spec, Random(1), self.writer)

    def writer(self, name: str) -> TraceWriter:
        self._writers.append(TraceWriter(self._folder, "r", name))
        return self._writers[-1]

    def lines(self) -> Lines:
        for writer in self._writers:
            writer.close()
        files = sorted((self._folder / "raw").iterdir())
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert not [found for line in lines for found in problems(line)]
        return [line for line in lines if line["ev"] != "meta"]
