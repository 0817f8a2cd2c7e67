"""Short real runs, whose traces are changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.plans.scenario import Scenario
from chaos.run import Run
from chaos.verdict import RunVerdict

_KILL = {"kind": "kill", "target": "leader", "at": 1, "lasts": 1}

#: Runs by name: what each scenario has besides its name and title.
SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    "log": {"workload": "log", "fault": [_KILL]},
    "broker": {"workload": "broker", "fault": [_KILL]},
    "log-isolated": {
        "workload": "log",
        "fault": [{"kind": "isolate", "target": "leader", "at": 1, "lasts": 3}],
    },
    "log-wiped": {"workload": "log", "fault": [{"kind": "wipe", "target": "follower", "at": 1, "lasts": 1}]},
    "log-power-loss": {
        "workload": "log",
        "fault": [{"kind": "power_loss", "target": "leader", "at": 1, "lasts": 1}],
    },
    "log-halves": {"workload": "log", "fault": [{"kind": "halves", "at": 1, "lasts": 3}]},
    "broker-stopped": {
        "workload": "broker",
        "fault": [{"kind": "stop", "target": "leader", "at": 1, "lasts": 3}],
    },
    "broker-isolated": {
        "workload": "broker",
        "fault": [{"kind": "isolate", "target": "leader", "at": 1, "lasts": 3}],
    },
    "clients": {
        "workload": "clients",
        "seconds": 8,
        "fault": [_KILL],
        "load": {"rate": 40, "clients": 2, "delayed": 0.15, "transactional": 0.15, "push": True},
    },
}

#: How often a run that proves nothing is tried.
_ATTEMPTS = 3


async def record(kind: str, folder: Path) -> Path:
    """Run this scenario, a few seconds long; the run directory.

    On a busy machine a run may prove nothing (a node takes too long to come back); then it is run again.
    """
    about = {"name": f"short-{kind}", "title": kind, "seconds": 5, "load": {"rate": 40}}
    scenario = Scenario.model_validate({**about, **SCENARIOS[kind]})
    for attempt in range(_ATTEMPTS):
        run = folder / str(attempt)
        result = await Run(scenario, run, seed=5).run()
        if result.verdict is not RunVerdict.VOID:
            break
    assert result.verdict is RunVerdict.VALID, result.reasons
    return run
