"""Scenario files: those that come along are good, and wrong ones are refused with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.cli.main import cli
from chaos.plans.scenario import (
    FOLDER,
    FaultStep,
    Kind,
    Scenario,
    all_scenarios,
    find_scenario,
    load_scenario,
    plan,
)
from dledger.errors import ConfigError


@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)
def test_each_scenario_is_named_as_its_file_and_has_a_plan(scenario: Scenario) -> None:
    assert (FOLDER / f"{scenario.name}.toml").exists()
    assert bool(plan(scenario)) == bool(scenario.fault)
    used = {step.kind for step in scenario.fault}
    assert scenario.nodes >= 5 or not used & {"ring", "halves", "bridge"}, "with three nodes they are nothing"


def test_the_middle_of_a_bridge_is_a_follower() -> None:
    """Nothing is cut that is used where a leader sees both halves: the run would say nothing."""
    steps = [step for scenario in all_scenarios() for step in scenario.fault]
    middles = {step.target for step in steps if step.kind == "bridge"}
    assert middles == {"follower"}


def test_a_repeated_fault_is_planned_as_often_as_it_ends_in_time() -> None:
    step = FaultStep(kind="kill", at=1, lasts=2, every=4)
    scenario = Scenario(name="x", title="x", seconds=11, fault=(step, FaultStep(kind="stop", at=2, lasts=1)))
    found = [(one.number, one.at, one.step.kind) for one in plan(scenario)]
    assert found == [(0, 1, "kill"), (1, 2, "stop"), (2, 5, "kill"), (3, 9, "kill")]


def test_a_plan_without_any_fault_that_fits_is_refused() -> None:
    scenario = Scenario(name="x", title="x", seconds=3, fault=(FaultStep(kind="kill", at=2, lasts=2),))
    with pytest.raises(ConfigError, match="no fault would end within 3 s"):
        plan(scenario)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('nam = "x"\ntitle = "x"', "nam: Extra inputs"),
        ('name = "x"\ntitle = "x"\n[[fault]]\nkind = "flood"', r"fault\.0\.kind"),
        ('name = "x"\ntitle = "x"\n[[fault]]\nkind = "kill"\nlasts = 3\nevery = 2', "before it is repeated"),
        ('name = "x"\ntitle = "x"\n[[fault]]\nkind = "bit_flip"\ntarget = "all"', "target a minority"),
        ('name = "x"\ntitle = "x"\n[[fault]]\nkind = "wipe"\ntarget = "majority"', "one node at a time"),
        ('name = "x"\ntitle = "x"\n[load]\nclients = 0', r"load\.clients"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_scenario(path)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ("delayed = 0.1\n[[fault]]\nkind = 'clock_jump'", "clock_jump and delayed"),
        ("delayed = 0.6\ntransactional = 0.5", "their sum must not exceed 1"),
    ],
)
def test_what_cannot_be_delayed_is_said(tmp_path: Path, load: str, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"name = 'x'\ntitle = 'x'\nworkload = 'clients'\n[load]\n{load}\n")
    with pytest.raises(ConfigError, match=words):
        load_scenario(path)


def test_released_clients_send_and_consume_in_all_ways_under_faults() -> None:
    for scenario in all_scenarios():
        if scenario.workload == "clients":
            load = scenario.load
            assert load.delayed and load.transactional and load.push, scenario.name


def test_a_scenario_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"'leader-kil'.*leader-kill"):
        find_scenario("leader-kil")


def test_who_has_to_be_replaced() -> None:
    assert FaultStep(kind="kill", target="leader").unseats_leader
    assert FaultStep(kind="wipe", target="leader").unseats_leader
    assert not FaultStep(kind="kill", target="follower").unseats_leader
    assert not FaultStep(kind="delay", target="leader").unseats_leader
    assert FaultStep(kind="isolate_in", target="leader").unseats_leader, "it hears nobody: check-quorum"
    assert FaultStep(kind="stuck_disk", target="leader").unseats_leader
    assert not FaultStep(kind="stuck_disk", target="all").unseats_leader, "nobody has a better disk"
    assert not FaultStep(kind="full_disk", target="all").unseats_leader
    assert FaultStep(kind="power_loss", target="all").unseats_leader
    assert not FaultStep(kind="clock_jump", target="leader").unseats_leader


CLASSIC = 'name = "x"\ntitle = "x"\nworkload = "broker"\nstore = "classic"\nnodes = 2\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "x"\ntitle = "x"\n[[fault]]\nkind = "take_over"', 'needs store = "classic"'),
        (CLASSIC, "load.max_batch = 1"),
        (CLASSIC.replace("2", "3") + "[load]\nmax_batch = 1", "nodes = 2"),
        (CLASSIC + '[load]\nmax_batch = 1\n[[fault]]\nkind = "take_over"', "load.consumers = 0"),
        (CLASSIC + '[load]\nmax_batch = 1\n[[fault]]\nkind = "kill"', "only take_over may replace"),
        (
            CLASSIC + '[load]\nmax_batch = 1\n[[fault]]\nkind = "sync_error"\ntarget = "follower"',
            "a classic log does not support these faults: sync_error",
        ),
    ],
)
def test_what_a_classic_log_cannot_show_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_scenario(path)


def test_a_classic_master_that_is_replaced_has_no_term() -> None:
    for scenario in all_scenarios():
        if scenario.store == "classic":
            assert not scenario.aims_at_leader
            assert all(one.kind == "take_over" for one in scenario.fault if one.unseats_leader)


def test_only_faults_of_disks_and_clocks_need_other_disks_and_clocks() -> None:
    def injects(kind: Kind) -> bool:
        step = FaultStep(kind=kind, target="follower", at=1, lasts=1)
        return Scenario(name="x", title="x", fault=(step,)).injects

    assert injects("sync_error") and injects("clock_jump") and injects("power_loss")
    assert not injects("kill") and not injects("isolate") and not injects("bit_flip")


def test_the_must_haves_are_there_by_name() -> None:
    """Each is named in docs/chaos.md, which says what it covers."""
    names = {scenario.name for scenario in all_scenarios()}
    text = (Path(__file__).resolve().parents[2] / "docs" / "chaos.md").read_text()
    covering = text[text.index("## Scenarios by known failure") : text.index("## Planted bugs")]
    named = set(re.findall(r"`([a-z0-9-]+)`", covering))
    assert named <= names
    assert {"rmq-5663-growing-set", "rmq-6662-two-masters", "rmq-7017-isolated-master"} <= named


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = CliRunner().invoke(cli, ["run", "bridge", "--dir", str(tmp_path / "file" / "new")])
    assert shown.exit_code == 3
    assert f"error: [Errno 20] Not a directory: '{tmp_path}/file/new'" in shown.output
