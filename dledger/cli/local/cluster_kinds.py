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
    `remoting`: every node gets a port for the remoting protocol, which `settings` call REMOTING_ADDRESS.
    `nodes`: how many there are, unless somebody says. `of_node`: further settings of the program, one for
    each node. `has_log` False: the nodes have no replicated log."""

    settings: Mapping[str, Any]
    companions: Sequence[tuple[CompanionPlan, Mapping[str, Any]]] = ()
    remoting: bool = False
    nodes: int = 3
    of_node: Sequence[Mapping[str, Any]] = ()
    has_log: bool = True


class KindChoice(NamedTuple):
    """`--name` with one of `values`, the first of which is the default."""

    name: str
    values: Sequence[str]
    help: str


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """`--name` of `cluster up`. `prepare` is given the base port, 0: any free ones, and what was chosen of
    `choices`, and "tls" where the cluster speaks it. `variables`: what users of a running cluster export;
    none if it is not of this kind. `columns` and `cells`: what `cluster status` shows besides, `facts`: what
    of a program's own it has with each node in JSON. `is_ready`: whether a node says that its program does
    its work; `cluster up` waits until one does, which it calls `ready_name`."""

    name: str
    help: str
    prepare: Callable[[int, Mapping[str, str]], Additions]
    variables: Callable[[ClusterPlan], Mapping[str, str]]
    columns: Sequence[str]
    cells: Callable[[OwnerFacts], Sequence[object]]
    ready_name: str
    is_ready: Callable[[OwnerFacts], bool]
    choices: Sequence[KindChoice] = ()
    facts: Sequence[str] = ()
