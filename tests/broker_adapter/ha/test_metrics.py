"""What /metrics says of master and slave."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from broker_adapter.log.classic.ha.client import HaClientState, HaClientStatus
from broker_adapter.log.classic.ha.service import HaServiceStatus, SlaveStatus
from broker_adapter.log.classic.node.replication import client_metrics, service_metrics


def lines(metrics: Iterable[Metric]) -> dict[str, float]:
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def test_of_a_master() -> None:
    slaves = [
        SlaveStatus("10.0.0.1:1", None, 0, 90, 80, 20, True),
        SlaveStatus("10.0.0.1:2", None, 0, 90, 10, 90, True),
        SlaveStatus("10.0.0.2:3", 7, 0, 90, 100, 0, True),
    ]
    status = HaServiceStatus("a:1", slaves, 5, 100, 0, {"PUT_OK": 3}, {"HA_GAP": 1}, {"connections": 2})
    assert lines(service_metrics(status)) == {
        "broker_ha_slaves": 3,
        "broker_ha_slave_lag_bytes 10.0.0.1": 90,
        "broker_ha_slave_lag_bytes 7": 0,
        "broker_ha_slave_acked_offset 10.0.0.1": 10,
        "broker_ha_slave_acked_offset 7": 100,
        "broker_ha_waits_total PUT_OK": 3,
        "broker_ha_refusals_total HA_GAP": 1,
        "broker_ha_limits_hit_total connections": 2,
    }


def test_of_a_slave() -> None:
    status = HaClientStatus(HaClientState.TRANSFER, "a:1", 70, 60, 500, 2, 0.1, False, None, "")
    assert lines(client_metrics(status)) == {
        "broker_ha_following": 1,
        "broker_ha_position": 70,
        "broker_ha_received_bytes_total": 500,
        "broker_ha_connections_total": 2,
    }
    ended = status._replace(state=HaClientState.READY)
    assert lines(client_metrics(ended))["broker_ha_following"] == 0
