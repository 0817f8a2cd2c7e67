"""Scenarios that change the members, on real processes, judged by the harness and by the checks of Raft."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.plans.scenario import FaultStep, Load, Scenario, find_scenario, newcomers
from dledger.errors import ConfigError
from tests.chaos.checker.raft_rules import broken_rules
from tests.chaos.test_runs import events_of
from tests.chaos.valid_runs import valid_run
from tests.node.local import PATIENT

LOAD = Load(clients=2, at_once=2, rate=200, readers=1)


def test_scenarios_say_how_many_nodes_they_add() -> None:
    assert newcomers(find_scenario("replaced-node")) == 1
    assert newcomers(find_scenario("growing-group")) == 2
    assert newcomers(find_scenario("promoted-mirror")) == 3
    assert newcomers(find_scenario("leader-kill")) == 0


@pytest.mark.parametrize(
    ("kind", "about", "why"),
    [
        ("add", {"workload": "clients"}, "the members change only"),
        ("remove", {"target": "majority"}, "one of these targets"),
        ("replace", {"target": "all"}, "one of these targets"),
        ("lose_majority", {"target": "majority", "workload": "broker"}, "lose_majority needs"),
        ("promote_mirror", {"target": "all", "workload": "broker"}, "promote_mirror needs"),
        ("kill", {"after": 1}, "an earlier fault"),
    ],
)
def test_changes_that_a_scenario_cannot_make_are_refused(kind: str, about: dict[str, str], why: str) -> None:
    workload = about.pop("workload", "log")
    with pytest.raises(ValueError, match=why):
        step = FaultStep.model_validate({"kind": kind, "target": "random", **about})
        Scenario.model_validate({"name": "x", "title": "x", "workload": workload, "fault": (step,)})


def scenario(name: str, *steps: FaultStep, seconds: float) -> Scenario:
    about = {"name": name, "title": "x", "seconds": seconds, "settings": {"timing": PATIENT}}
    return Scenario(**about, load=LOAD, fault=steps)


@pytest.mark.process
@pytest.mark.xdist_group("chaos-members")
async def test_a_node_is_replaced_and_the_faults_that_follow_hit_the_new_members(tmp_path: Path) -> None:
    replaced = FaultStep(kind="replace", target="leader", at=0.5, lasts=0.5)
    stopped = FaultStep(kind="kill", target="follower", at=1, lasts=0.5, after=1)
    result, folder, _ = await valid_run(scenario("short-replace", replaced, stopped, seconds=3), tmp_path)
    events = events_of(folder)
    (gone,) = {e["targets"] for e in events if e["ev"] == "fault" and e["f"] == "replace"}
    (hit,) = {e["targets"] for e in events if e["ev"] == "fault" and e["f"] == "kill"}
    dumped = {e["node"] for e in events if e.get("e") == "dumped"}
    assert dumped == {"n1", "n2", "n3", "n4"} - {gone} and hit in dumped
    configured = [e for e in events if e.get("e") == "configuration" and e["node"] == "n4"]
    newest = max(configured, key=lambda e: e["lidx"])
    assert set(newest["voters"].split(",")) == dumped and newest["outgoing"] == ""
    assert result.leader_changes >= 1
    assert broken_rules([folder]) == []


def test_nodes_are_only_added_to_clusters_whose_nodes_are_traced(tmp_path: Path) -> None:
    from chaos.run import Run

    with pytest.raises(ConfigError, match="needs the traces"):
        Run(find_scenario("replaced-node"), tmp_path / "run", seed=1, trace_nodes=False)
