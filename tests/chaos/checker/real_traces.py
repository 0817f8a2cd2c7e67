"""Traces of real runs, as lines that tests can change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import orjson

from chaos.trace.schema import RAW_DIR
from tests.chaos.checker.synthetic import Line, Trace


def load_trace(run_dir: Path, run: str) -> Trace:
    """The whole lines of a run, given another name."""
    trace = Trace(run)
    for path in sorted((run_dir / RAW_DIR).glob("*.jsonl")):
        whole = [text for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]
        lines: list[Line] = [orjson.loads(text) | {"run": run} for text in whole]
        if lines:
            trace.files[str(lines[0]["src"]), int(lines[0]["inc"])] = lines
    return trace


def drop(trace: Trace, is_gone: Callable[[Line], bool]) -> int:
    """Have it that such lines never were; how many there are."""
    gone = 0
    for key, lines in trace.files.items():
        trace.files[key] = [line for line in lines if not is_gone(line)]
        gone += len(lines) - len(trace.files[key])
    trace.renumber()
    return gone


def drop_operations(trace: Trace, ops: Collection[object]) -> int:
    """Have it that these operations, and what they showed, never were."""
    return drop(trace, lambda line: line["ev"] in {"op", "dlv"} and line.get("op") in ops)
