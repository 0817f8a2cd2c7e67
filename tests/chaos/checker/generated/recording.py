"""Short real runs, whose traces are changed."""

from __future__ import annotations

from pathlib import Path

from chaos.plans.scenario import Scenario
from chaos.run import Run
from chaos.verdict import Verdict

KINDS = ("log", "broker")


async def record(kind: str, folder: Path) -> Path:
    """Run three seconds of this workload with a kill of its leader; the run directory."""
    fault = {"kind": "kill", "target": "leader", "at": 1, "lasts": 1}
    about = {"name": f"short-{kind}", "title": "A kill", "workload": kind, "seconds": 3}
    load = {"rate": 40, "readers": 1}
    scenario = Scenario.model_validate({**about, "load": load, "fault": [fault]})
    result = await Run(scenario, folder, seed=5).run()
    assert result.verdict is Verdict.VALID, result.reasons
    return folder
