"""Detects scenarios that cannot run on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.plans.scenario import Scenario
from chaos.workloads.released.installed import client_python
from dledger.errors import ConfigError


def runnable(scenarios: Sequence[Scenario]) -> tuple[list[Scenario], str]:
    """Return the scenarios that can run, and a message about the others, which is "" if all can run."""
    try:
        client_python()
    except ConfigError as error:
        left_out = [scenario.name for scenario in scenarios if scenario.workload == "clients"]
        if left_out:
            remaining = [scenario for scenario in scenarios if scenario.name not in left_out]
            return remaining, f"NOT RUN: {', '.join(left_out)}: {error.message}"
    return list(scenarios), ""
