"""Random scenarios for soak runs, derived from the built-in scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from pydantic import ValidationError

from chaos.plans.scenario import MEMBER_TARGETS, FaultStep, Scenario, plan
from dledger.cli.local.cluster_plan import to_toml
from dledger.errors import ConfigError

#: Faults that destroy copies of entries. Two of them at the same time might affect a majority.
DESTRUCTIVE = ("wipe", "bit_flip", "replace", "lose_majority", "promote_mirror")
#: Factors for the length of a scenario. Repeated faults occur more often in a longer run.
_LONGER = (1, 2, 3)
#: Latest start of an added fault, in seconds.
_LATEST = 6.0


def draw(rng: Random, scenarios: Sequence[Scenario]) -> Scenario:
    """Return one of the scenarios with a random load, size and length. In half of the cases, add a fault of
    a random scenario, if one fits."""
    while True:
        base = rng.choice(scenarios)
        content = base.model_dump()
        content["load"] = _drawn_load(rng, content["load"])
        content["nodes"] = max(base.nodes, rng.choice((3, 3, 5)))
        content["seconds"] *= rng.choice(_LONGER)
        if rng.random() < 0.5:
            other = rng.choice(scenarios)
            _add_fault(rng, content, other)
        try:
            drawn = Scenario.model_validate(content)
            plan(drawn)
        except (ValidationError, ConfigError):
            continue
        return drawn


def _drawn_load(rng: Random, load: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "clients": rng.randint(2, 6),
        "max_batch": rng.choice((1, 4, 16)),
        "max_bytes": rng.choice((20, 200, 2000)),
        "consumers": rng.randint(1, 3),
    }
    if not load["rate"]:
        changes["rate"] = rng.choice((0, 0, rng.randint(200, 2000)))
    return load | changes


def _add_fault(rng: Random, content: dict[str, Any], other: Scenario) -> None:
    """Add one step of `other` at a random time, without repetition."""
    steps = [step for step in other.fault if _go_together(step, content)]
    if steps:
        moved = {"at": round(rng.uniform(1.0, _LATEST), 1), "every": 0.0, "after": None}
        step = rng.choice(steps).model_dump() | moved
        content["fault"] = (*content["fault"], step)
        content["seconds"] = max(content["seconds"], step["at"] + step["lasts"])
        content["settings"] = {**other.settings, **content["settings"]}
        content["name"] = f"{content['name']}-and-{step['kind'].replace('_', '-')}"


def _go_together(step: FaultStep, content: dict[str, Any]) -> bool:
    kinds = {fault["kind"] for fault in content["fault"]}
    if "all" in (step.target, *(fault["target"] for fault in content["fault"])):
        return False  # one of the two faults would have no available target
    if step.kind in MEMBER_TARGETS and kinds & MEMBER_TARGETS.keys():
        return False  # changes of the members wait for each other, for an unknown time
    return not (step.kind in DESTRUCTIVE and kinds & set(DESTRUCTIVE))


def to_file(scenario: Scenario) -> str:
    """Return the text of an equivalent scenario file."""
    content = scenario.model_dump(mode="json", exclude={"fault", "hostile"})
    steps = [step.model_dump(mode="json", exclude_defaults=True, exclude={"kind"}) for step in scenario.fault]
    faults = [
        "[[fault]]\n" + to_toml({"kind": scenario.fault[n].kind, **step}) for n, step in enumerate(steps)
    ]
    hostiles = [
        "[[hostile]]\n" + to_toml({"kind": step.kind, **step.model_dump(mode="json", exclude_defaults=True)})
        for step in scenario.hostile
    ]
    return "\n".join([to_toml(content), *faults, *hostiles])
