"""The metrics, read back with Prometheus' own parser."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from dledger.status.metrics import StatusExporter
from tests.status.fakes import FakeHistogram, FakeNodeMetrics, FakeSource, make_follower, make_status


def families_of(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


@pytest.fixture
def families() -> dict[str, Metric]:
    return families_of(FakeSource().metrics_text())


def value_of(family: Metric, **labels: str) -> float:
    (value,) = [sample.value for sample in family.samples if sample.labels == labels]
    return value


def test_metrics_of_others_come_after_those_of_the_node() -> None:
    more = [GaugeMetricFamily("broker_behind", "Of a program on the log.", value=7.0)]
    families = families_of(StatusExporter(FakeSource().node_status, FakeNodeMetrics(), lambda: more).text())
    assert value_of(families["broker_behind"]) == 7 and "dledger_term" in families


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dledger_term", 7),
        ("dledger_ledger_begin_index", 0),
        ("dledger_ledger_end_index", 1_204_331),
        ("dledger_durable_index", 1_204_331),
        ("dledger_committed_index", 1_204_330),
        ("dledger_applied_index", 1_204_329),
        ("dledger_pending_bytes", 1000),
        ("dledger_disk_used_bytes", 1_073_741_824),
        ("dledger_disk_free_bytes", 80_000_000_000),
        ("dledger_has_leader", 1),
        ("dledger_healthy", 1),
        ("dledger_sessions", 4),
        ("dledger_uptime_seconds", 18_000),
    ],
)
def test_gauges(families: dict[str, Metric], name: str, value: float) -> None:
    assert families[name].type == "gauge"
    assert value_of(families[name]) == value


def test_role_is_one_of_all(families: dict[str, Metric]) -> None:
    assert {s.labels["role"]: s.value for s in families["dledger_role"].samples} == {
        "UNKNOWN": 0,
        "CANDIDATE": 0,
        "FOLLOWER": 0,
        "LEADER": 1,
    }


def test_followers(families: dict[str, Metric]) -> None:
    assert value_of(families["dledger_follower_lag_entries"], follower="n3") == 5120
    assert value_of(families["dledger_follower_lag_bytes"], follower="n3") == 5_200_000
    assert value_of(families["dledger_follower_connected"], follower="n2") == 1
    assert value_of(families["dledger_follower_last_contact_seconds"], follower="n2") == 0.042


def test_a_follower_never_heard_of_has_no_last_contact() -> None:
    source = FakeSource()
    source.change("n1", followers=(make_follower("n2", last_contact_ms=-1),))
    families = families_of(source.metrics_text())
    assert families["dledger_follower_last_contact_seconds"].samples == []
    assert value_of(families["dledger_follower_lag_entries"], follower="n2") == 0


def test_counters(families: dict[str, Metric]) -> None:
    elections = families["dledger_elections"]
    assert elections.type == "counter"
    assert {s.name for s in elections.samples} == {"dledger_elections_total"}
    assert value_of(elections, cause="timeout") == 2
    assert value_of(families["dledger_limits_hit"], limit="pending_bytes") == 12


def test_how_late_the_event_loop_is(families: dict[str, Metric]) -> None:
    assert value_of(families["dledger_loop_lag_seconds"]) == 0.5
    assert value_of(families["dledger_loop_stalls"]) == 3


def test_whether_cpus_are_kept_awake_is_told(families: dict[str, Metric]) -> None:
    assert value_of(families["dledger_keeps_cpus_awake"]) == 1
    asleep = FakeNodeMetrics(keeps_cpus_awake=lambda: False)
    found = families_of(StatusExporter(FakeSource().node_status, asleep).text())
    assert value_of(found["dledger_keeps_cpus_awake"]) == 0


def test_histograms_are_cumulative(families: dict[str, Metric]) -> None:
    family = families["dledger_append_latency_seconds"]
    assert family.type == "histogram"
    buckets = [(s.labels["le"], s.value) for s in family.samples if s.name.endswith("_bucket")]
    assert buckets == [("0.001", 5), ("0.01", 8), ("0.1", 8), ("+Inf", 10)]
    assert [s.value for s in family.samples if s.name.endswith("_count")] == [10]
    assert [s.value for s in family.samples if s.name.endswith("_sum")] == [1.25]
    assert "dledger_fsync_latency_seconds" in families


def test_every_metric_has_help(families: dict[str, Metric]) -> None:
    assert [name for name, family in families.items() if not family.documentation] == []


def test_nothing_global_is_touched() -> None:
    before = {family.name for family in REGISTRY.collect()}
    exporters = [FakeSource().exporter for _ in range(2)]
    assert all(exporter.text() for exporter in exporters)
    assert {family.name for family in REGISTRY.collect()} == before


def test_an_exporter_may_be_made_before_its_node_is_up() -> None:
    def not_yet() -> object:
        raise AssertionError("asked too early")

    StatusExporter(not_yet, FakeNodeMetrics())  # type: ignore[arg-type]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_hostile_names_survive(name: str) -> None:
    status = make_status("n1", cluster_id=name, followers=(make_follower(name),), limits_hit={name: 1})
    metrics = FakeNodeMetrics(elections_by_cause={name: 3})
    text = StatusExporter(lambda: status, metrics).text().decode()
    # Of all characters only these three need escapes, and none may break the line.
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = text.split("\n")
    assert f'dledger_follower_lag_entries{{follower="{escaped}"}} 0.0' in lines
    assert f'dledger_elections_total{{cause="{escaped}"}} 3.0' in lines


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12))
def test_histogram_total_is_the_number_of_observations(counts: list[int]) -> None:
    bounds = tuple(0.001 * 2**i for i in range(len(counts) - 1))
    metrics = FakeNodeMetrics(append_latency=FakeHistogram(bounds, tuple(counts), 1.0))
    family = families_of(StatusExporter(make_status, metrics).text())["dledger_append_latency_seconds"]
    buckets = {float(s.labels["le"]): s.value for s in family.samples if s.name.endswith("_bucket")}
    assert tuple(buckets) == (*bounds, math.inf)
    assert buckets[math.inf] == sum(counts)
