"""Nothing that a node has said goes back from one step to the next."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.testing import QUIET, Simulation, Violation
from dledger.testing.invariants import ObservedState, check_step

STATE = ObservedState(
    term=3,
    voted_for="n1",
    role_epoch=7,
    committed_index=10,
    applied_index=9,
    begin_index=4,
    durable_index=12,
    committed_chain=0xABC,
    needs_image=False,
)


def check(cut_after: int | None = None, chain_before: int | None = 0xABC, **changes: Any) -> None:
    check_step("n0", STATE, STATE._replace(**changes), cut_after=cut_after, chain_before=chain_before)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"term": 4, "voted_for": None},
        {"committed_index": 12, "committed_chain": 0xDEF},
        {"durable_index": 11, "cut_after": 11},
        {"durable_index": 10, "cut_after": 10},
        {"begin_index": 10, "chain_before": None, "applied_index": 10},
        {"begin_index": 10, "chain_before": None, "applied_index": -1},
        {"needs_image": True, "applied_index": -1},
    ],
)
def test_what_goes_on_is_right(changes: dict[str, Any]) -> None:
    check(**changes)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"term": 2}, r"nothing goes back\] term"),
        ({"role_epoch": 6}, r"nothing goes back\] role_epoch"),
        ({"committed_index": 9}, r"nothing goes back\] committed_index"),
        ({"applied_index": 8}, r"nothing goes back\] applied_index"),
        ({"applied_index": -1}, r"nothing goes back\] applied_index"),
        ({"begin_index": 10, "chain_before": None, "applied_index": 8}, r"nothing goes back\] applied_index"),
        ({"begin_index": 3}, r"nothing goes back\] begin_index"),
        ({"durable_index": 11}, r"nothing goes back\] durable_index"),
        ({"durable_index": 10, "cut_after": 11}, r"nothing goes back\] durable_index"),
        ({"voted_for": "n2"}, "one vote per term"),
        ({"voted_for": None}, "one vote per term"),
        ({"chain_before": 0xABD}, "committed is forever"),
        ({"chain_before": None}, "committed is forever"),
    ],
)
def test_what_goes_back_is_found(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(Violation, match=rule):
        check(**changes)


@pytest.mark.parametrize("name", ["durable_index", "committed_index"])
def test_every_step_of_a_simulated_node_is_compared_with_the_one_before(name: str) -> None:
    simulation = Simulation(QUIET, seed=1)
    simulation.start()
    simulation.run_until(lambda: simulation.leader() is not None, limit_ms=5_000)
    node_id = simulation.leader()
    assert node_id is not None
    simulation.append(node_id, b"x")
    simulation.run_until(simulation.is_settled, limit_ms=5_000)
    core = simulation.process(node_id).replica.core

    def go_back() -> None:
        log = core.log if name == "durable_index" else core
        setattr(log, name, getattr(log, name) - 1)

    simulation.process(node_id).post(go_back)
    with pytest.raises(Violation, match=f"nothing goes back. {name}"):
        simulation.run_for(5_000)
    simulation.close()
