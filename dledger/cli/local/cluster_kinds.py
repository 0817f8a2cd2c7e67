"""Local clusters whose nodes run a program on top of the log, which extend `cluster up`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dledger.cli.local.cluster_plan import ClusterPlan, CompanionPlan

#: The status of a node's program: `owner` of the node's status.
OwnerFacts = Mapping[str, Any]


class Additions(NamedTuple):
    """Extensions of a new cluster: config keys for every node, and additional servers with their configs.

    `remoting`: every node gets a port for the remoting protocol, for which `settings` use REMOTING_ADDRESS.
    `nodes`: default number of nodes. `of_node`: further settings of the program, one per node. `has_log`
    False: the nodes have no replicated log."""

    settings: Mapping[str, Any]
    companions: Sequence[tuple[CompanionPlan, Mapping[str, Any]]] = ()
    remoting: bool = False
    nodes: int = 3
    of_node: Sequence[Mapping[str, Any]] = ()
    has_log: bool = True


class PortRow(NamedTuple):
    """A kind of port of a cluster, under its name in docs/ports.md: its addresses, one per node, and who
    connects to them."""

    port: str
    addresses: Sequence[str]
    clients: str


class KindChoice(NamedTuple):
    """An option `--name` with one of `values`, the first of which is the default."""

    name: str
    values: Sequence[str]
    help: str


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """An option `--name` of `cluster up`.

    `prepare` receives the base port (0: any free ports) and the chosen `choices`, plus "tls" if the cluster
    uses TLS. `variables` returns the variables that users of a running cluster must export, or none if the
    cluster is of another kind. `columns` and `cells`: additional columns of `cluster status`; `facts`: fields
    of the program's status that its JSON includes. `ports`: the rows of `cluster status` for further ports,
    or for ports of nodes that have more clients, given the status of the programs that answer. `is_ready`:
    returns True if a node's program is operational; `cluster up` waits for one and prints `ready_name`."""

    name: str
    help: str
    prepare: Callable[[int, Mapping[str, str]], Additions]
    variables: Callable[[ClusterPlan], Mapping[str, str]]
    columns: Sequence[str]
    cells: Callable[[OwnerFacts], Sequence[object]]
    ports: Callable[[ClusterPlan, Sequence[OwnerFacts]], Sequence[PortRow]]
    ready_name: str
    is_ready: Callable[[OwnerFacts], bool]
    choices: Sequence[KindChoice] = ()
    facts: Sequence[str] = ()
