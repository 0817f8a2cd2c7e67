"""Local clusters whose nodes carry a program beside the log: what such a program adds to `cluster up`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dledger.cli.local.cluster_plan import ClusterPlan, CompanionPlan

#: What a node's program says of itself: `owner` of the node's status.
OwnerFacts = Mapping[str, Any]


class Additions(NamedTuple):
    """To a new cluster: keys of every node's config, and servers beside the nodes with their configs.
    `remoting`: every node gets a port for the remoting protocol, which `settings` call REMOTING_ADDRESS."""

    settings: Mapping[str, Any]
    companions: Sequence[tuple[CompanionPlan, Mapping[str, Any]]] = ()
    remoting: bool = False


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """`--name` of `cluster up`. `prepare` is given the base port, 0: any free ones. `variables`: what users
    of a running cluster export; none if it is not of this kind. `columns` and `cells`: what `cluster status`
    shows besides. `is_ready`: whether a node says that its program does its work; `cluster up` waits until
    one does, which it calls `ready_name`."""

    name: str
    help: str
    prepare: Callable[[int], Additions]
    variables: Callable[[ClusterPlan], Mapping[str, str]]
    columns: Sequence[str]
    cells: Callable[[OwnerFacts], Sequence[object]]
    ready_name: str
    is_ready: Callable[[OwnerFacts], bool]
