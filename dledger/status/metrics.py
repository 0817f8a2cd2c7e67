"""The status as Prometheus metrics: generated from NodeStatus at each scrape, without global state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dledger.status.model import NodeStatus

# The classic text format, which every Prometheus version reads. The metrics need no newer features.

ROLES = ("UNKNOWN", "CANDIDATE", "FOLLOWER", "LEADER")


class HistogramCounts(Protocol):
    """Observations counted in buckets.

    `buckets` are the upper bounds in ascending order, without +Inf. `counts` has one non-cumulative number
    per bucket, and a last one for observations above all bounds.
    """

    @property
    def buckets(self) -> Sequence[float]: ...
    @property
    def counts(self) -> Sequence[int]: ...
    @property
    def sum(self) -> float: ...


class NodeMetricsSource(Protocol):
    """Counters of a node beyond NodeStatus."""

    @property
    def append_latency(self) -> HistogramCounts: ...
    @property
    def fsync_latency(self) -> HistogramCounts: ...
    @property
    def elections_by_cause(self) -> Mapping[str, int]: ...
    @property
    def keeps_cpus_awake(self) -> Callable[[], bool]: ...
    @property
    def loop_lag_s(self) -> Callable[[], float]: ...
    @property
    def loop_stalls(self) -> Callable[[], int]: ...


# name, help text, value. The order is the order of the output.
_GAUGES: tuple[tuple[str, str, Callable[[NodeStatus], float]], ...] = (
    ("dledger_term", "Current term of the node.", lambda s: s.term),
    (
        "dledger_role_epoch",
        "Increases with every change of role, also across restarts.",
        lambda s: s.role_epoch,
    ),
    ("dledger_incarnation", "Number of starts of this node on its data.", lambda s: s.incarnation),
    ("dledger_has_leader", "1 if this node knows a leader, else 0.", lambda s: bool(s.leader_id)),
    ("dledger_healthy", "1 if the node reports to be healthy, else 0.", lambda s: s.health == "ok"),
    (
        "dledger_leader_since_timestamp_seconds",
        "Unix time since which this node knows its current leader, or 0 if it knows none.",
        lambda s: s.leader_since_unix_ms / 1000,
    ),
    (
        "dledger_ledger_begin_index",
        "First index stored on this node; -1: the ledger is empty.",
        lambda s: s.ledger_begin_index,
    ),
    (
        "dledger_ledger_end_index",
        "Last index stored on this node; -1: the ledger is empty.",
        lambda s: s.ledger_end_index,
    ),
    ("dledger_ledger_end_term", "Term of the last stored entry.", lambda s: s.ledger_end_term),
    ("dledger_durable_index", "Highest index that an fsync covers.", lambda s: s.durable_index),
    (
        "dledger_verified_index",
        "Highest index known to equal the log of the current leader.",
        lambda s: s.verified_index,
    ),
    ("dledger_committed_index", "Highest index known to be committed.", lambda s: s.committed_index),
    (
        "dledger_applied_index",
        "Highest index handed to the state machine.",
        lambda s: s.applied_index,
    ),
    (
        "dledger_ledger_end_position_bytes",
        "Byte position of the end of the ledger.",
        lambda s: s.ledger_end_pos,
    ),
    (
        "dledger_committed_position_bytes",
        "Byte position up to which the ledger is committed.",
        lambda s: s.committed_pos,
    ),
    ("dledger_pending_bytes", "Bytes appended and not yet committed.", lambda s: s.pending_bytes),
    ("dledger_disk_used_bytes", "Bytes on disk used by this node's data.", lambda s: s.disk_used_bytes),
    ("dledger_disk_free_bytes", "Bytes free on the disk of the data.", lambda s: s.disk_free_bytes),
    ("dledger_damaged_ranges", "Ranges of entries that cannot be read now.", lambda s: len(s.damaged)),
    ("dledger_damages_found", "Damaged ranges found since the start.", lambda s: s.scrub_found),
    ("dledger_damages_repaired", "Damaged ranges repaired since the start.", lambda s: s.repaired),
    ("dledger_scrubbed_index", "Index that the scrub has reached.", lambda s: s.scrubbed_index),
    (
        "dledger_rejoining",
        "1 while the node does not vote: it lost its log or the end of it.",
        lambda s: bool(s.rejoining),
    ),
    (
        "dledger_rebuilding",
        "1 while the node rebuilds its sessions from the log, and may not lead.",
        lambda s: bool(s.rebuilding),
    ),
    ("dledger_needs_image", "1 while the node waits for a state image.", lambda s: s.needs_image),
    ("dledger_disk_full", "1 while there is no disk space beyond the reserve.", lambda s: s.no_room),
    ("dledger_reserved_bytes", "Bytes that can certainly be appended.", lambda s: s.reserved_bytes),
    (
        "dledger_clock_offset_seconds",
        "Difference of the wall clock to cluster time; positive: ahead.",
        lambda s: s.clock_offset_ms / 1000,
    ),
    (
        "dledger_clock_spread_seconds",
        "Difference between the earliest and the latest known wall clock of the members.",
        lambda s: s.clock_spread_ms / 1000,
    ),
    (
        "dledger_age_purge_pause_seconds",
        "Remaining pause of purging by age after a large step of cluster time.",
        lambda s: s.age_purge_pause_ms / 1000,
    ),
    (
        "dledger_newest_image_index",
        "Index of the newest committed state image, or -1 if there is none.",
        lambda s: s.newest_image,
    ),
    ("dledger_sessions", "Append sessions in the log.", lambda s: s.sessions),
    ("dledger_voters", "Members that count in majorities.", lambda s: s.count_members("voter")),
    ("dledger_learners", "Members that only receive the log.", lambda s: s.count_members("learner")),
    (
        "dledger_membership_index",
        "Index of the newest change of the members, or -1 if there is none.",
        lambda s: s.membership_index,
    ),
    (
        "dledger_membership_changes",
        "1 while a change of the members is under way.",
        lambda s: s.membership_changes,
    ),
    ("dledger_uptime_seconds", "Time since the node started.", lambda s: s.uptime_ms / 1000),
)


class StatusExporter:
    """Writes a node's metrics as text, from a private registry. Create one per node."""

    def __init__(
        self,
        status: Callable[[], NodeStatus],
        metrics: NodeMetricsSource,
        more: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        """`more`: metrics of other components, which must not raise and must have distinct names."""
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(status, metrics))
        self._registry.register(_ExtraCollector(more))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        """Return the metrics as values: name, type, help text, labels, samples."""
        return self._registry.collect()


class _NodeCollector(Collector):
    def __init__(self, status: Callable[[], NodeStatus], metrics: NodeMetricsSource) -> None:
        self._status = status
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Return no metrics. Otherwise the registry would collect them at registration, before the node is
        running."""
        return ()

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        yield _info(status)
        yield _role(status)
        for name, text, value in _GAUGES:
            yield GaugeMetricFamily(name, text, value=float(value(status)))
        yield GaugeMetricFamily(
            "dledger_keeps_cpus_awake",
            "1 if this node keeps CPUs awake while it has work; 0 if it cannot, or is not configured to.",
            value=float(self._metrics.keeps_cpus_awake()),
        )
        yield GaugeMetricFamily(
            "dledger_loop_lag_seconds",
            "Longest lag of the event loop during the last one to two minutes.",
            value=self._metrics.loop_lag_s(),
        )
        yield CounterMetricFamily(
            "dledger_loop_stalls",
            "Number of event loop lags of 0.1 s or more.",
            value=self._metrics.loop_stalls(),
        )
        yield from _followers(status)
        yield _counter(
            "dledger_elections",
            "Changes of role, term or leader seen by this node, by cause.",
            "cause",
            self._metrics.elections_by_cause,
        )
        yield _counter(
            "dledger_limits_hit",
            "Requests refused or delayed by a limit of this node, by limit.",
            "limit",
            status.limits_hit,
        )
        yield _histogram(
            "dledger_append_latency_seconds",
            "From the receipt of an append on the leader to its commit.",
            self._metrics.append_latency,
        )
        yield _histogram(
            "dledger_fsync_latency_seconds",
            "Duration of one fdatasync of the ledger.",
            self._metrics.fsync_latency,
        )


class _ExtraCollector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def _info(status: NodeStatus) -> InfoMetricFamily:
    labels = {
        "cluster_id": status.cluster_id,
        "group": status.group,
        "node_id": status.node_id,
        "version": status.version,
        "flush_mode": status.flush_mode,
    }
    return InfoMetricFamily("dledger_node", "Identity of this node.", value=labels)


def _role(status: NodeStatus) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "dledger_role", "1 for the role of the node, 0 for the others.", labels=["role"]
    )
    for role in ROLES:
        family.add_metric([role], float(status.role == role))
    return family


def _followers(status: NodeStatus) -> Iterable[Metric]:
    entries = GaugeMetricFamily(
        "dledger_follower_lag_entries",
        "Entries that a follower is behind. Reported by the leader only.",
        labels=["follower"],
    )
    size = GaugeMetricFamily(
        "dledger_follower_lag_bytes",
        "Bytes that a follower is behind. Reported by the leader only.",
        labels=["follower"],
    )
    inflight = GaugeMetricFamily(
        "dledger_follower_inflight_bytes",
        "Bytes sent to a follower and not yet acknowledged.",
        labels=["follower"],
    )
    connected = GaugeMetricFamily(
        "dledger_follower_connected",
        "1 if the leader has a stream to the follower, else 0.",
        labels=["follower"],
    )
    contact = GaugeMetricFamily(
        "dledger_follower_last_contact_seconds",
        "Time since the last answer of a follower; absent if it never answered.",
        labels=["follower"],
    )
    for f in status.followers:
        entries.add_metric([f.node_id], f.lag_entries)
        size.add_metric([f.node_id], f.lag_bytes)
        inflight.add_metric([f.node_id], f.inflight_bytes)
        connected.add_metric([f.node_id], float(f.connected))
        if f.last_contact_ms >= 0:
            contact.add_metric([f.node_id], f.last_contact_ms / 1000)
    return entries, size, inflight, connected, contact


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key in sorted(counts):
        family.add_metric([key], counts[key])
    return family


def _histogram(name: str, text: str, histogram: HistogramCounts) -> HistogramMetricFamily:
    bounds = [str(float(bound)) for bound in histogram.buckets] + ["+Inf"]
    cumulative = [float(total) for total in accumulate(histogram.counts)]
    buckets = list(zip(bounds, cumulative, strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum)
