"""What /metrics says of the broker: all that the role changes have counted, and what they wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker_adapter.delivery.service import DeliveryFigures
from broker_adapter.endpoints.forwarding.forwarder import ForwardingMetrics
from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.role.role_status import HandlerStatus, RoleChangeMetrics, RoleStep
from broker_adapter.server.broker_status import BrokerStatus
from broker_adapter.server.program import BrokerProgram
from broker_adapter.store.applied import NOTHING
from broker_adapter.store.dispatcher import DispatchMetrics
from broker_adapter.store.dispatching import SetAside

DISPATCH = DispatchMetrics(NOTHING, NOTHING, 2, 3, foreign_records=4, set_aside=SetAside(5, 17, "why"))


def handler_status(**changed: Any) -> HandlerStatus:
    values: dict[str, Any] = {
        "step": RoleStep.MASTER,
        "role": "LEADER",
        "term": 3,
        "role_epoch": 7,
        "leader_id": "n1",
        "barrier_index": 5,
        "writable": True,
        "waits_for": "",
        "waiting_ms": 0,
        "fit": True,
        "dispatch_behind_bytes": 0,
        "failures": 0,
        "last_failure": "",
        "last_switch_unix_ms": 0,
        "elected_to_writable_ms": 12,
    }
    return HandlerStatus(**values | changed)


def samples(status: HandlerStatus, changes: RoleChangeMetrics) -> dict[tuple[str, ...], float]:
    """(name, values of the labels) -> value, of all that is exported."""
    program = SimpleNamespace(
        adapter=SimpleNamespace(is_master=True),
        host=SimpleNamespace(metrics=tuple),
        writer=SimpleNamespace(expected=(3, 7)),
        files=SimpleNamespace(dispatch_behind_bytes=11),
        dispatcher=SimpleNamespace(figures=lambda: DISPATCH),
        broker=SimpleNamespace(long_polls=[]),
        metadata=SimpleNamespace(topics={}),
        delivery=SimpleNamespace(figures=lambda: DeliveryFigures(*range(1, 13)), duplicates={"t": 3}),
        clients=SimpleNamespace(
            service=SimpleNamespace(waiting_receives=9), streams=SimpleNamespace(by_type=dict)
        ),
        forwarder=SimpleNamespace(figures=ForwardingMetrics()),
        remoting=SimpleNamespace(server=None, counts={(34, 0): 2}),
        topic_expiry=SimpleNamespace(expired=0),
        traffic=Traffic(lambda: 0.0, lambda: 0),
        group_expiry=SimpleNamespace(expired=0),
        handler=SimpleNamespace(status=status, metrics=changes),
    )
    metrics = BrokerStatus(cast("BrokerProgram", program)).metrics()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def test_everything_that_the_handler_counts_is_exported() -> None:
    changes = RoleChangeMetrics()
    changes.elected_to_writable.observe(0.012)
    changes.switches[RoleStep.MASTER] = 2
    changes.seconds[RoleStep.WAITING_FOR_DISPATCH] = 1.5
    changes.failures[RoleStep.RECOVERING] = 3
    changes.overdue[RoleStep.WAITING_FOR_COMMIT] = 4
    changes.superseded, changes.stale_events = 5, 6
    changes.hand_overs["done"] = 7
    found = samples(handler_status(), changes)
    assert found["broker_elected_to_writable_seconds_count",] == 1
    assert found["broker_elected_to_writable_seconds_sum",] == 0.012
    assert found["broker_role_switches_total", "MASTER"] == 2
    assert found["broker_role_change_step_seconds_total", "WAITING_FOR_DISPATCH"] == 1.5
    assert found["broker_role_change_failures_total", "RECOVERING"] == 3
    assert found["broker_role_change_overdue_total", "WAITING_FOR_COMMIT"] == 4
    assert found["broker_role_events_superseded_total",] == 5
    assert found["broker_role_events_stale_total",] == 6
    assert found["broker_hand_overs_total", "done"] == 7
    assert len(vars(changes)) == 8, "a new figure: export it, and look for it here"


def test_a_wait_is_told_with_its_reason_as_long_as_it_lasts() -> None:
    waiting = handler_status(
        step=RoleStep.WAITING_FOR_DISPATCH, waits_for="dispatch up to 5", waiting_ms=1500, fit=False
    )
    found = samples(waiting, RoleChangeMetrics())
    assert found["broker_role_change_waiting_seconds", "WAITING_FOR_DISPATCH"] == 1.5
    assert found["broker_fit",] == 0
    at_rest = samples(handler_status(), RoleChangeMetrics())
    assert not [key for key in at_rest if key[0] == "broker_role_change_waiting_seconds"]
    assert at_rest["broker_fit",] == 1


def test_entries_that_could_not_be_applied_are_told_apart_from_those_that_are_no_messages() -> None:
    found = samples(handler_status(), RoleChangeMetrics())
    assert (found["broker_foreign_records_total",], found["broker_set_aside_total",]) == (4, 5)
