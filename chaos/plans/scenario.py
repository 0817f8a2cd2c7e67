"""Scenarios: short, declarative files that say what load runs and what breaks when.

A scenario is a TOML file in `chaos/scenarios/` (or anywhere): adding one needs no code. Times are seconds
since the load has warmed up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chaos.hostile.kinds import KINDS
from chaos.workloads.spec import LoadSpec
from dledger import ConfigError
from dledger.platform import read_toml

FOLDER = Path(__file__).parents[1] / "scenarios"

Seconds = Annotated[float, Field(ge=0, le=86_400)]
ProcessKind = Literal["kill", "stop", "term", "wipe", "take_over"]
DiskKind = Literal[
    "slow_disk",
    "stuck_disk",
    "full_disk",
    "write_error",
    "sync_error",
    "power_loss",
    "bit_flip",
]
NetworkKind = Literal[
    "isolate",
    "isolate_out",
    "isolate_in",
    "cut",
    "cut_one_way",
    "halves",
    "bridge",
    "ring",
    "delay",
    "loss",
    "reset",
    "throttle",
    "hang",
]
Kind = ProcessKind | NetworkKind | DiskKind | Literal["clock_jump"]
HostileKind = Literal[
    "connection_floods",
    "handshake_floods",
    "exhausted_descriptors",
    "half_requests",
    "garbage",
    "unread_streams",
    "expensive_filters",
    "telemetry_floods",
    "topic_floods",
    "repeated_calls",
    "abandoned_groups",
    "dying_clients",
    "forged_peers",
    "forged_registrations",
    "registration_floods",
]
Target = Literal["leader", "follower", "random", "minority", "majority", "all"]
#: What takes a process away: no other fault is aimed at it meanwhile.
TAKING = ("kill", "stop", "term", "wipe", "take_over", "write_error", "sync_error", "power_loss")
#: What needs nodes whose disks and clocks can be made faulty.
INJECTED = (
    "slow_disk",
    "stuck_disk",
    "full_disk",
    "write_error",
    "sync_error",
    "power_loss",
    "clock_jump",
)
#: A fault on the leader for which another one has to be elected.
UNSEATING = (
    "take_over",
    "kill",
    "stop",
    "term",
    "isolate",
    "isolate_out",
    "isolate_in",
    "halves",
    "hang",
    "write_error",
    "sync_error",
    "power_loss",
)
#: The same, unless all disks are like this: then leadership stays where it is.
UNSEATING_ALONE = ("wipe", "stuck_disk", "full_disk")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FaultStep(_Section):
    """One fault, begun `at`, ended after `lasts`, begun again `every` so many seconds (0: once)."""

    kind: Kind
    """The fault. See [chaos](../chaos.md)."""
    target: Target = "leader"
    """Which nodes it hits."""
    at: Seconds = 2.0
    """When it begins, seconds after the warm-up."""
    lasts: Seconds = 2.0
    """How long it lasts, in seconds."""
    every: Seconds = 0.0
    """Time between two beginnings, in seconds; more than `lasts`. 0: once."""
    delay_ms: Annotated[int, Field(ge=0, le=60_000)] = 100
    """`delay`: delay of each piece of traffic."""
    jitter_ms: Annotated[int, Field(ge=0, le=60_000)] = 50
    """`delay`: random part of it."""
    reset_chance: Annotated[float, Field(gt=0, le=1)] = 0.02
    """`loss`: chance that a piece of traffic (up to 64 KiB) breaks its connection."""
    bytes_per_second: Annotated[int, Field(gt=0)] = 64 << 10
    """`throttle`: bytes that pass."""
    slow_ms: Annotated[int, Field(gt=0, le=60_000)] = 50
    """`slow_disk`: how long each sync takes in addition."""
    entries: Annotated[int, Field(gt=0, le=1000)] = 3
    """`bit_flip`: entries that are damaged."""
    jump_s: Annotated[float, Field(ge=-1e9, le=1e9)] = 3600.0
    """`clock_jump`: how far the clock jumps, in seconds."""

    @model_validator(mode="after")
    def _repeats_after_its_end(self) -> FaultStep:
        if self.every and self.every <= self.lasts:
            raise ValueError("every must be more than lasts: a fault ends before it begins again")
        if self.kind == "wipe" and self.target in ("majority", "all", "minority"):
            raise ValueError("wipe loses one node at a time: what a majority has lost is lost")
        if self.kind == "bit_flip" and self.target in ("majority", "all"):
            raise ValueError("bit_flip damages a minority: what is damaged on a majority is lost")
        return self

    @property
    def unseats_leader(self) -> bool:
        """Whether another leader has to be elected for it."""
        if self.kind in UNSEATING_ALONE:
            return self.target == "leader"
        return self.kind in UNSEATING and self.target in ("leader", "majority", "all")


class HostileStep(_Section):
    """One hostile client in a process of its own."""

    kind: HostileKind
    """The hostile client. See [chaos](../chaos.md)."""
    at: Seconds = 1.0
    """When it begins, seconds after the warm-up."""
    lasts: Annotated[float, Field(gt=0, le=86_400)] = 10.0
    """How long it lasts, in seconds."""
    clients: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Connections or callers at a time. Default: what is usual for the kind."""
    rate: Annotated[float, Field(ge=0, le=100_000)] | None = None
    """What all of them begin in a second; 0: as fast as they are answered. Default: what is usual for the
    kind."""


_USUAL = LoadSpec()


class Load(_Section):
    """See LoadSpec."""

    clients: Annotated[int, Field(ge=1, le=64)] = _USUAL.clients
    """Producers, or appending clients."""
    at_once: Annotated[int, Field(ge=0, le=256)] = _USUAL.at_once
    """Operations of each client under way in a closed loop. 0: 6 on a log, 32 on brokers, 4 of released
    clients."""
    rate: Annotated[float, Field(ge=0)] = _USUAL.rate
    """Messages a second of all clients together. 0: as fast as they are answered."""
    max_batch: Annotated[int, Field(ge=1, le=256)] = _USUAL.max_batch
    """Messages of one operation, at most. Not for `clients`."""
    max_bytes: Annotated[int, Field(ge=0, le=65_536)] = _USUAL.max_bytes
    """Bytes of one body, at most."""
    readers: Annotated[int, Field(ge=0, le=16)] = _USUAL.readers
    """Clients that read while others write. Only `log`."""
    topics: Annotated[int, Field(ge=1, le=16)] = _USUAL.topics
    """Topics. Not for `log`."""
    queues: Annotated[int, Field(ge=1, le=16)] = _USUAL.queues
    """Queues of a topic. Not for `log`."""
    consumers: Annotated[int, Field(ge=0, le=16)] = _USUAL.consumers
    """Members of each consumer group. Not for `log`."""
    delayed: Annotated[float, Field(ge=0, le=1)] = _USUAL.delayed
    """Share of delayed messages. Only `clients`."""
    transactional: Annotated[float, Field(ge=0, le=1)] = _USUAL.transactional
    """Share of messages in transactions. Only `clients`."""
    push: bool = _USUAL.push
    """Groups of push consumers are there, too. Only `clients`."""

    @model_validator(mode="after")
    def _shares_are_of_one_whole(self) -> Load:
        if self.delayed + self.transactional > 1:
            raise ValueError("delayed and transactional are shares of all messages: together 1 at most")
        return self

    def spec(self) -> LoadSpec:
        return LoadSpec(**self.model_dump())


class Scenario(_Section):
    """One scenario. Sizes in bytes, times in seconds."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    """Its name, as in `dledger-chaos run NAME`."""
    title: Annotated[str, Field(min_length=1, max_length=100)]
    """One line for `dledger-chaos list`."""
    why: str = ""
    """What it is for."""
    workload: Literal["log", "broker", "clients"] = "log"
    """`log`: appends and reads. `broker`: the broker's own clients. `clients`: released clients of
    RocketMQ 5."""
    store: Literal["replicated", "classic"] = "replicated"
    """The log of brokers. `classic`: two nodes, master and slave; nobody elects. Only `broker`."""
    double_write: bool = True
    """With a classic log: sends wait for the slave (SYNC_MASTER)."""
    nodes: Annotated[int, Field(ge=1, le=9)] = 3
    """Nodes of the cluster."""
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 15.0
    """From the end of the warm-up to the healing."""
    min_acknowledged: Annotated[int, Field(ge=1)] = 20
    """Operations acknowledged before, during and after the faults, or the run says nothing."""
    tls: bool = False
    """All ports speak mutual TLS, with certificates made for the run. Only `log`."""
    data_file_size: Annotated[int, Field(ge=64 << 10, le=1 << 30)] = 16 << 20
    """Bytes of a data file of the log."""
    load: Load = Load()
    """The load."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further keys of every node's configuration."""
    broker_settings: dict[str, Any] = Field(default_factory=dict)
    """Further keys of every broker's settings."""
    fault: tuple[FaultStep, ...] = ()
    """Faults (`[[fault]]`), by their beginning."""
    served_within_s: Annotated[float, Field(ge=0.5, le=3_600)] = 5.0
    """Beside hostile clients each kind of operation of the good ones succeeds, and each group is given
    messages, at least so often."""
    most_server_mib: Annotated[int, Field(ge=64, le=1 << 20)] = 1024
    """Memory that each server may take beside hostile clients, in MiB."""
    hostile: tuple[HostileStep, ...] = ()
    """Hostile clients (`[[hostile]]`)."""

    @model_validator(mode="after")
    def _delays_end_by_clocks_that_are_right(self) -> Scenario:
        if self.load.delayed and any(step.kind == "clock_jump" for step in self.fault):
            raise ValueError("clock_jump and delayed: whose clock jumps holds what is due later for due")
        return self

    @model_validator(mode="after")
    def _hostile_clients_have_something_to_call(self) -> Scenario:
        for step in self.hostile:
            if KINDS[step.kind].on_brokers and self.workload == "log":
                raise ValueError(f'{step.kind} needs brokers: workload = "broker" or "clients"')
            if KINDS[step.kind].on_tls and not self.tls:
                raise ValueError(f"{step.kind} needs ports with TLS: tls = true")
        if self.tls and self.workload != "log":
            raise ValueError('tls = true needs workload = "log"')
        return self

    @model_validator(mode="after")
    def _a_classic_log_has_two_nodes_and_no_leader_of_its_own(self) -> Scenario:
        kinds = {step.kind for step in self.fault}
        if self.store != "classic":
            if "take_over" in kinds:
                raise ValueError('take_over needs store = "classic": elsewhere nodes elect')
            return self
        if (self.workload, self.nodes, self.load.max_batch) != ("broker", 2, 1):
            raise ValueError('store = "classic" needs workload = "broker", nodes = 2 and load.max_batch = 1')
        if "take_over" in kinds and self.load.consumers:
            raise ValueError("take_over needs load.consumers = 0: members may have seen what is lost")
        if odd := kinds & {*INJECTED, "wipe", "bit_flip"}:
            raise ValueError(f"faults that know no classic log: {', '.join(sorted(odd))}")
        if any(step.unseats_leader and step.kind != "take_over" for step in self.fault):
            raise ValueError("a classic master is replaced by take_over only: aim other faults at a follower")
        return self

    @model_validator(mode="after")
    def _what_may_be_purged_can_be_seen(self) -> Scenario:
        if self.settings.get("retention", {}).get("min_free_bytes") is not None:
            raise ValueError("retention.min_free_bytes: no trace tells how much room there was")
        _ = self.kept
        return self

    @property
    def kept(self) -> dict[str, int]:
        """What retention allows to go, as fields of the trace: `keep_ms`, `keep_bytes`."""
        retention = self.settings.get("retention", {})
        kept: dict[str, int] = {}
        if (age := retention.get("max_age")) is not None:
            found = re.fullmatch(r"(\d+)(ms|s|m)", str(age))
            if not found:
                raise ValueError(f"retention.max_age: {age!r} is no whole number of ms, s or m")
            kept["keep_ms"] = int(found[1]) * {"ms": 1, "s": 1000, "m": 60_000}[found[2]]
        if (size := retention.get("max_bytes")) is not None:
            kept["keep_bytes"] = int(size)
        return kept

    @property
    def injects(self) -> bool:
        """Whether it needs disks and clocks that can be made faulty."""
        return any(step.kind in INJECTED for step in self.fault)

    @property
    def aims_at_leader(self) -> bool:
        """Whether leaders of a log are to change: a classic master has no terms."""
        return self.store != "classic" and any(step.unseats_leader for step in self.fault)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One planned fault."""

    number: int
    at: float
    step: FaultStep


def plan(scenario: Scenario) -> list[Occurrence]:
    """All faults of a run, by their beginning. Each ends within `seconds`. ConfigError if none fits."""
    found: list[tuple[float, FaultStep]] = []
    for step in scenario.fault:
        at = step.at
        while at + step.lasts <= scenario.seconds:
            found.append((at, step))
            if not step.every:
                break
            at += step.every
    if scenario.fault and not found:
        raise ConfigError(f"{scenario.name}: no fault ends within {scenario.seconds:g} s")
    found.sort(key=lambda one: one[0])
    return [Occurrence(number, at, step) for number, (at, step) in enumerate(found)]


@dataclass(frozen=True, slots=True)
class HostileOccurrence:
    """One planned hostile client. To the trace it is a fault, so its number is none of a fault."""

    number: int
    step: HostileStep


def plan_hostiles(scenario: Scenario) -> list[HostileOccurrence]:
    """All hostile clients of a run that end within `seconds`. ConfigError if none does."""
    found = [step for step in scenario.hostile if step.at + step.lasts <= scenario.seconds]
    if scenario.hostile and not found:
        raise ConfigError(f"{scenario.name}: no hostile client ends within {scenario.seconds:g} s")
    first = len(plan(scenario))
    return [HostileOccurrence(number, step) for number, step in enumerate(found, first)]


def load_scenario(path: Path) -> Scenario:
    """ConfigError names the file, the key and what is valid."""
    content = read_toml(path)
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{path}: {faults}") from None


def find_scenario(name: str) -> Scenario:
    """By name, or by the path of its file. ConfigError if there is none."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.exists():
        known = ", ".join(scenario.name for scenario in all_scenarios())
        raise ConfigError(f"there is no scenario {name!r}; known are {known}")
    return load_scenario(path)


def all_scenarios() -> list[Scenario]:
    """Those that come with this package, by name."""
    return [load_scenario(path) for path in sorted(FOLDER.glob("*.toml"))]
