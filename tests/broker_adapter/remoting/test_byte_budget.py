"""Memory that connections share: whoever gives up waiting holds up nobody behind it."""

from __future__ import annotations

from broker_adapter.remoting.byte_budget import ByteBudget


def test_who_waits_no_longer_makes_way_for_who_is_behind_and_fits() -> None:
    budget = ByteBudget(10)
    granted: list[str] = []

    def large() -> None:
        granted.append("large")

    assert budget.ask(8, lambda: None)
    assert not budget.ask(6, large)
    assert not budget.ask(2, lambda: granted.append("small")), "nobody overtakes"
    budget.withdraw(large)
    assert granted == ["small"]
    assert (budget.taken, budget.waiting) == (10, 0)
