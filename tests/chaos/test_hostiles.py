"""Hostile clients: what a scenario may say of them, what they put on the wire, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from broker_adapter.endpoints.filters.sql92 import compile_sql
from broker_adapter.endpoints.filters.sql_tokens import MAX_WORDS
from chaos.faults.hostiles import HostileRun
from chaos.hostile import handshakes, wire
from chaos.hostile.consumers import costly_expressions
from chaos.hostile.kinds import KINDS, achieved
from chaos.hostile.orders import HostileOrders, counts_of_line, counts_to_line
from chaos.plans.scenario import (
    HostileKind,
    HostileOccurrence,
    HostileStep,
    Load,
    Scenario,
    all_scenarios,
    load_scenario,
    plan,
    plan_hostiles,
)
from chaos.plans.soak import to_file
from chaos.quick.trace import QuickReport
from chaos.trace.schema import HOSTILE, Ev, problems
from chaos.verdict import Phases, RunVerdict, judge_run
from chaos.workloads.tally import LoadTally
from dledger.errors import ConfigError
from tests.chaos.valid_runs import valid_run
from tests.node.local import PATIENT


def test_each_kind_is_known_to_scenarios_the_trace_and_the_process() -> None:
    assert set(get_args(HostileKind)) == set(HOSTILE) == set(KINDS)


def test_each_kind_is_in_a_scenario_of_the_package() -> None:
    used = {step.kind for scenario in all_scenarios() for step in scenario.hostile}
    assert used == set(HOSTILE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('kind = "flood"', r"hostile\.0\.kind"),
        ('kind = "garbage"\nclients = 0', r"hostile\.0\.clients"),
        ('kind = "garbage"\nrate = -1', r"hostile\.0\.rate"),
        ('kind = "garbage"\nlasts = 0', r"hostile\.0\.lasts"),
        ('kind = "topic_floods"', "topic_floods needs brokers"),
        ('kind = "handshake_floods"', "handshake_floods needs TLS ports"),
        ('kind = "garbage"\ntarget = "all"', r"hostile\.0\.target: Extra inputs"),
    ],
)
def test_what_is_wrong_with_a_hostile_client_is_said(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f'name = "x"\ntitle = "x"\n[[hostile]]\n{text}\n')
    with pytest.raises(ConfigError, match=words):
        load_scenario(path)


def test_only_clusters_of_the_log_speak_tls() -> None:
    with pytest.raises(ValueError, match="needs workload"):
        Scenario(name="x", title="x", tls=True, workload="broker")


def test_half_a_handshake_is_half_of_one_record() -> None:
    """What comes of it says that there is more."""
    hello = handshakes._client_hello(handshakes._context())
    assert (hello[0], int.from_bytes(hello[3:5], "big")) == (0x16, len(hello) - 5)


def test_hostile_clients_that_do_not_end_in_time_are_left_out_and_all_of_them_refused() -> None:
    short, long = HostileStep(kind="garbage", at=1, lasts=3), HostileStep(kind="half_requests", lasts=30)
    scenario = Scenario(name="x", title="x", seconds=5, hostile=(long, short))
    assert [(one.number, one.step) for one in plan_hostiles(scenario)] == [(0, short)]
    with pytest.raises(ConfigError, match="no hostile client would end within 5 s"):
        plan_hostiles(Scenario(name="x", title="x", seconds=5, hostile=(long,)))


def test_hostile_clients_are_numbered_behind_the_faults() -> None:
    scenario = next(one for one in all_scenarios() if one.hostile and one.fault)
    numbers = [one.number for one in (*plan(scenario), *plan_hostiles(scenario))]
    assert numbers == list(range(len(numbers)))


def test_a_scenario_with_hostile_clients_is_written_as_it_was_read(tmp_path: Path) -> None:
    for scenario in (one for one in all_scenarios() if one.hostile):
        path = tmp_path / f"{scenario.name}.toml"
        path.write_text(to_file(scenario))
        assert load_scenario(path) == scenario


def test_orders_and_counts_are_lines() -> None:
    orders = HostileOrders("garbage", 1, 2, 3.5, "c", "g", {"n1": "h:1"}, ("h:2",), ("h:3",), ("t",))
    assert HostileOrders.of_line(orders.to_line()) == orders
    assert orders.ports == ["h:1", "h:3", "h:2"]
    assert counts_of_line(counts_to_line({"a": 1})) == {"a": 1}


def test_achieved_is_what_shows_in_every_proof() -> None:
    assert achieved("dying_clients", {"killed": 1, "held": 1})
    assert not achieved("dying_clients", {"killed": 1})
    assert not achieved("dying_clients", {"killed": 1, "held": 0})


@pytest.mark.parametrize(
    ("failures", "verdict"), [([], RunVerdict.VALID), (["had no effect: "], RunVerdict.VOID)]
)
def test_a_hostile_client_that_achieved_nothing_makes_a_run_void(
    failures: list[str], verdict: RunVerdict
) -> None:
    scenario = Scenario(name="x", title="x", min_acknowledged=1, hostile=(HostileStep(kind="garbage"),))
    run = HostileRun(HostileOccurrence(0, scenario.hostile[0]), began=10**9, ended=2 * 10**9)
    run.failures = failures
    tally = LoadTally()
    for at in (5, 15, 35):
        tally.ok(at * 10**8, at * 10**8)
    phases = Phases(0, 3 * 10**9, 4 * 10**9)
    found, reasons = judge_run(scenario, [], tally, phases, QuickReport(drained=True), [run])
    assert found is verdict
    assert reasons == [f"hostile client 0, garbage: {failure}" for failure in failures]


def test_long_headers_have_lengths_of_several_bytes() -> None:
    """RFC 7541, 5.1: 1337 with a prefix of five bits is 31, 154, 10; here it has seven."""
    block = wire.call_headers("/x", 1, (("a", "b" * 300),))
    assert block.endswith(bytes((1,)) + b"a" + bytes((0x7F, 0xAD, 0x01)) + b"b" * 300)


@pytest.mark.parametrize("number", range(4))
def test_costly_filters_are_valid_large_and_match_nothing(number: int) -> None:
    """An invalid one would be refused before it costs anything."""
    text = costly_expressions()[number]
    compiled = compile_sql(text)
    assert not compiled.matches({}) and not compiled.matches({"TAGS": "t", "KEYS": "k"})
    assert len(text) > 16 << 10 or compiled.steps > MAX_WORDS * 9 // 10
    assert len(text) < 28 << 10, "a receive has at most 32 KiB"


def test_a_half_message_says_that_it_is_longer() -> None:
    assert wire.message(b"abc", claimed=9) == b"\0\0\0\0\x09abc"
    assert wire.frame(wire.DATA, wire.END_STREAM, 3, b"abc") == b"\0\0\x03\0\x01\0\0\0\x03abc"


@pytest.mark.process
@pytest.mark.xdist_group("chaos-runs")
async def test_good_clients_are_served_beside_hostile_ones(tmp_path: Path) -> None:
    """A short run, whole. Kinds that need brokers are in the scenarios of the package."""
    kinds: tuple[HostileKind, ...] = ("connection_floods", "half_requests", "unread_streams", "forged_peers")
    steps = tuple(HostileStep(kind=kind, at=0.2, lasts=6, clients=24) for kind in kinds)
    load = Load(clients=2, at_once=2, rate=300)
    scenario = Scenario(
        name="short-hostile",
        title="x",
        seconds=7,
        settings={"timing": PATIENT},
        load=load,
        hostile=steps,
        most_server_mib=700,
    )
    result, folder, _ = await valid_run(scenario, tmp_path)
    assert result.report.acknowledged > 100 and len(result.hostiles) == len(kinds)
    lines = [
        json.loads(line) for path in (folder / "raw").iterdir() for line in path.read_text().splitlines()
    ]
    assert not [found for line in lines for found in problems(line)]
    assert _of(lines, Ev.META, e="run_begin")[0]["window_ms"] == 5_000
    for kind in kinds:
        assert [(line["e"], line["effective"]) for line in _of(lines, Ev.FAULT, f=kind)] == [
            ("begin", True),
            ("end", True),
        ]
    memory = {line["node"]: line["size"] for line in _of(lines, Ev.META, e="memory")}
    assert set(memory) == {"n1", "n2", "n3"} and all(10 << 20 < size < 700 << 20 for size in memory.values())
    assert not _of(lines, Ev.META, e="ended")


def _of(lines: list[dict[str, Any]], ev: Ev, **fields: object) -> list[dict[str, Any]]:
    """By their clock."""
    found = [line for line in lines if line["ev"] == ev and all(line.get(k) == v for k, v in fields.items())]
    return sorted(found, key=lambda line: int(line["mono"]))
