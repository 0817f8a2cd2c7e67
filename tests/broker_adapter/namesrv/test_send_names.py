"""Write-only names of members: they never disappear, and lead to a port that answers (docs/namesrv.md)."""

from __future__ import annotations

import pytest

from broker_adapter.errors import NameServerBusy, NameServerRefused
from broker_adapter.namesrv.tables import RouteTables
from broker_adapter.namesrv.values import Registration, TableLimits

from .helpers import registration

HOUR_MS = 3_600_000


class World:
    """A NameServer's tables, with members n1 to n3 of broker-a."""

    def __init__(self) -> None:
        self.tables = RouteTables()
        self.now_ms = 0

    def register(
        self, node: str, broker_id: int, *, term: int = 1, members: str = "n1 n2 n3", **more: object
    ) -> set[str]:
        return self.tables.register(member(node, broker_id, term=term, members=members, **more), self.now_ms)

    def names(self) -> dict[str, tuple[str, bool]]:
        """Send-only port and write permission by write-only name."""
        names = self.tables.route("orders").send_names.get("broker-a", ())
        return {one.name: (one.address, one.is_writable) for one in names}


def member(
    node: str, broker_id: int, *, term: int = 1, members: str = "n1 n2 n3", **more: object
) -> Registration:
    return registration(
        node, broker_id, term=term, send_address=f"{node}:2", members=tuple(members.split()), **more
    )


@pytest.fixture
def world() -> World:
    return World()


def test_all_members_have_names_and_others_than_the_master_take_messages(world: World) -> None:
    world.register("n1", 0)
    world.register("n2", 1)
    world.register("n3", 2)
    assert world.names() == {
        "broker-a-n1": ("n1:2", False),
        "broker-a-n2": ("n2:2", True),
        "broker-a-n3": ("n3:2", True),
    }


def test_the_name_of_a_member_that_is_down_leads_to_the_master_and_takes_nothing(world: World) -> None:
    world.register("n1", 0)
    assert world.names()["broker-a-n2"] == ("n1:2", False)
    assert world.register("n2", 1) == {"orders"}, "watchers are told"
    assert world.names()["broker-a-n2"] == ("n2:2", True)
    world.tables.unregister("broker-a", "n2", -1, 0)
    assert world.names()["broker-a-n2"] == ("n1:2", False)


def test_names_stay_while_there_is_no_master_and_lead_to_a_slave(world: World) -> None:
    """Clients would send the ends of transactions to the NameServer, or keep a dead address."""
    world.register("n1", 0)
    world.register("n2", 1)
    world.tables.unregister("broker-a", "n1", -1, 0)
    assert world.names() == {
        "broker-a-n1": ("n2:2", False),
        "broker-a-n2": ("n2:2", True),
        "broker-a-n3": ("n2:2", False),
    }
    world.register("n2", 0, term=2, role_epoch=2)
    assert world.names()["broker-a-n2"] == ("n2:2", False)


def test_the_name_of_a_removed_member_stays_for_an_hour_without_permission(world: World) -> None:
    world.register("n1", 0)
    world.register("n3", 2)
    world.register("n1", 0, members="n1 n2")
    assert world.names()["broker-a-n3"] == ("n3:2", False)
    world.tables.unregister("broker-a", "n3", -1, 0)
    assert world.names()["broker-a-n3"] == ("n1:2", False)
    world.now_ms = HOUR_MS
    world.register("n1", 0, members="n1 n2")
    assert world.tables.expire(world.now_ms)[1] == set()
    world.now_ms += 1
    assert world.tables.expire(world.now_ms)[1] == {"orders"}
    assert list(world.names()) == ["broker-a-n1", "broker-a-n2"]


def test_a_removed_member_that_returns_takes_messages_again(world: World) -> None:
    world.register("n1", 0)
    world.register("n2", 1)
    world.register("n1", 0, members="n1")
    assert world.names()["broker-a-n2"] == ("n2:2", False)
    world.register("n1", 0)
    assert world.names()["broker-a-n2"] == ("n2:2", True)


def test_brokers_without_a_send_only_port_have_one_name() -> None:
    """Classic ones, those of RocketMQ, and nodes of 0.1.0."""
    tables = RouteTables()
    tables.register(registration("n1", 0), 0)
    assert tables.route("orders").send_names == {} and tables.send_names() == {"main": []}


def test_members_are_few_and_have_names() -> None:
    tables = RouteTables(TableLimits(max_nodes_per_name=2))
    with pytest.raises(NameServerBusy):
        tables.register(member("n1", 0), 0)
    with pytest.raises(NameServerRefused):
        tables.register(registration("n1", 0, members=("",)), 0)
