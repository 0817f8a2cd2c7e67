"""Generated changes of real traces: each is caught, makes the run unknown, or is on a list by hand.

The traces are recorded (`traces/`), so that a seed gives the same changes ever again. More of them:
`python -m tests.chaos.checker.generated`.
"""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.judge import CheckVerdict, judge
from chaos.checker.tables import make_tables
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.generated.changes import Source
from tests.chaos.checker.generated.judging import Outcome, draw, try_all
from tests.chaos.checker.synthetic import Trace

TRACES = Path(__file__).parent / "traces"
KINDS = ("log", "broker")
_NUMBER = 40


def recorded(kind: str) -> Trace:
    """A run of this workload with a kill of its leader."""
    trace = Trace("whole")
    for text in lzma.decompress((TRACES / f"{kind}.jsonl.xz").read_bytes()).decode().splitlines():
        line = json.loads(text) | {"run": "whole"}
        trace.files.setdefault((line["src"], line["inc"]), []).append(line)
    return trace


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_no_change_is_judged_valid_without_a_reason(tmp_path: Path, kind: str, at_once: int) -> None:
    source = Source(recorded(kind))
    batches = try_all(source, draw(source, 1, _NUMBER, at_once), tmp_path / "changed", 1)
    tried = [one for batch in batches for one in batch]
    missed = [str(one) for one in tried if one.outcome is Outcome.MISSED]
    assert len(tried) == _NUMBER and not missed, "\n".join(missed)
    assert {Outcome.CAUGHT, Outcome.UNKNOWN} <= {one.outcome for one in tried}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_harmless_changes_leave_a_good_trace_valid(tmp_path: Path, kind: str) -> None:
    whole = recorded(kind)
    lines = {key: [json.dumps(line | {"unheard_of": 1}) for line in one] for key, one in whole.files.items()}
    for run, names in (("order", "zyx"), ("split", "abc")):
        raw = tmp_path / run / "raw"
        raw.mkdir(parents=True)
        keys = list(lines)
        random.Random(1).shuffle(keys)
        for number, key in enumerate(keys):
            middle = len(lines[key]) // 2 if run == "split" else 0
            for part, texts in enumerate((lines[key][:middle], lines[key][middle:])):
                if texts:
                    text = "".join(f"{line}\n" for line in texts).replace('"whole"', f'"{run}"')
                    (raw / f"{names[part]}-{number}.jsonl").write_text(text)
    late = recorded(kind)
    for lines_of in (late.files[key] for key in late.files if key[0] == "client:p1"):
        for line in lines_of:
            line["mono"] = int(line["mono"]) - 10_000_000
    for line in late.all_lines():
        line["run"] = "late"
        if line.get("e") == "run_begin":
            line["clock_bound_ns"] = 20_000_000
    late.write(tmp_path / "late")
    engine = DuckEngine()
    engine.load(sorted(tmp_path.iterdir()))
    make_tables(engine)
    found = {result.run: (result.verdict, result.reasons) for result in judge(engine, CHECKS)}
    assert found == {run: (CheckVerdict.VALID, []) for run in ("late", "order", "split")}
