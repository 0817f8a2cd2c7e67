"""Scenarios that cannot be run here."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.plans.scenario import Scenario
from chaos.workloads.released.installed import client_python
from dledger.errors import ConfigError


def runnable(scenarios: Sequence[Scenario]) -> tuple[list[Scenario], str]:
    """Those that can be run, and what is to be said of the others; "" if there are none."""
    try:
        client_python()
    except ConfigError as error:
        left_out = [scenario.name for scenario in scenarios if scenario.workload == "clients"]
        if left_out:
            found = [scenario for scenario in scenarios if scenario.name not in left_out]
            return found, f"NOT RUN, which proves nothing: {', '.join(left_out)}: {error.message}"
    return list(scenarios), ""
