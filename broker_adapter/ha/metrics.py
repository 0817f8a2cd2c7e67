"""What /metrics says of master and slave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from broker_adapter.ha.client import HaClientState, HaClientStatus
from broker_adapter.ha.service import HaServiceStatus, SlaveStatus


def service_metrics(status: HaServiceStatus) -> Iterator[Metric]:
    """Of a master. Slaves are told apart by their id, or by their host if they have not said it."""
    yield _gauge("broker_ha_slaves", "Slaves connected to this master.", len(status.slaves))
    lag = GaugeMetricFamily(
        "broker_ha_slave_lag_bytes", "Bytes of the log that a slave has not acknowledged.", labels=["slave"]
    )
    acked = GaugeMetricFamily(
        "broker_ha_slave_acked_offset", "All before it is stored at the slave.", labels=["slave"]
    )
    for name, one in _by_name(status.slaves).items():
        lag.add_metric([name], one.lag_bytes)
        acked.add_metric([name], one.acked)
    yield lag
    yield acked
    yield _counter("broker_ha_waits", "Sends that waited for slaves, by outcome.", "outcome", status.acks)
    yield _counter("broker_ha_refusals", "Slaves refused, by error.", "error", status.refusals)
    yield _counter(
        "broker_ha_limits_hit", "Connections of slaves refused or closed.", "limit", status.limits_hit
    )


def client_metrics(status: HaClientStatus) -> Iterator[Metric]:
    """Of a slave."""
    is_following = status.state is HaClientState.TRANSFER
    yield _gauge("broker_ha_following", "1: this slave is connected to its master.", int(is_following))
    yield _gauge("broker_ha_position", "All before it is stored at this slave.", status.position)
    for name, text, value in (
        ("broker_ha_received_bytes", "Bytes of the log that this slave was sent.", status.received_bytes),
        ("broker_ha_connections", "How often this slave has connected to a master.", status.connections),
    ):
        family = CounterMetricFamily(name, text)
        family.add_metric([], value)
        yield family


def _by_name(slaves: Iterable[SlaveStatus]) -> dict[str, SlaveStatus]:
    """Of several with one name, the one that is furthest behind."""
    found: dict[str, SlaveStatus] = {}
    for one in slaves:
        name = one.address.rpartition(":")[0] if one.id is None else str(one.id)
        if name not in found or found[name].lag_bytes < one.lag_bytes:
            found[name] = one
    return found


def _gauge(name: str, text: str, value: int) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, count in sorted(counts.items()):
        family.add_metric([key], count)
    return family
