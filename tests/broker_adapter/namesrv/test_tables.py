"""The rules of the tables, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, NameServerBusy, NameServerRefused, Status
from broker_adapter.namesrv.tables import RouteTables
from broker_adapter.namesrv.values import Registration, RegistrationAnswer, TableLimits
from tests.broker_adapter.namesrv.helpers import ORDERS, PAYMENTS, address_of, registration


class World:
    """Tables, and a clock that is set by hand."""

    def __init__(self, limits: TableLimits | None = None) -> None:
        self.tables = RouteTables(limits)
        self.now_ms = 1_000_000

    def register(self, given: Registration, session: int = 0) -> set[str]:
        return self.tables.register(given, self.now_ms, session)

    def refused(self, given: Registration, status: Status) -> None:
        before = self.tables.brokers(self.now_ms), self.routes()
        with pytest.raises(BrokerError) as caught:
            self.register(given)
        assert caught.value.status is status
        assert (self.tables.brokers(self.now_ms), self.routes()) == before

    def routes(self) -> list[object]:
        return [self.tables.route(topic) for topic in self.tables.topics()]

    def addresses(self, topic: str = "orders", name: str = "broker-a") -> dict[int, str]:
        return dict(self.tables.route(topic).brokers.get(name, {}))

    def ids(self) -> dict[str, int]:
        return {entry.node_id: entry.broker_id for entry in self.tables.brokers(self.now_ms)}


@pytest.fixture
def world() -> World:
    return World()


def test_a_master_brings_its_topics_and_slaves_join_it(world: World) -> None:
    assert world.register(registration("n1", 0, term=4)) == {"orders"}
    assert world.register(registration("n2", 2)) == {"orders"}
    route = world.tables.route("orders")
    assert route.queues == {"broker-a": ORDERS}
    assert route.brokers == {"broker-a": {0: address_of("n1"), 2: address_of("n2")}}
    assert route.master_terms == {"broker-a": 4}
    assert world.tables.cluster_addr_table == {"main": {"broker-a"}}
    assert world.tables.registration_answer("broker-a") == RegistrationAnswer(address_of("n1"), 4)


def test_the_same_registration_again_changes_nothing(world: World) -> None:
    world.register(registration())
    assert world.register(registration()) == set()


def test_a_topic_of_several_brokers_has_all_of_them(world: World) -> None:
    world.register(registration(name="broker-a"))
    world.register(registration(name="broker-b"))
    assert set(world.tables.route("orders").queues) == {"broker-a", "broker-b"}
    assert world.tables.cluster_addr_table == {"main": {"broker-a", "broker-b"}}


def test_topics_of_slaves_do_not_count(world: World) -> None:
    world.register(registration("n2", 2))
    assert world.tables.topics() == []
    world.register(registration("n1", 0))
    assert world.register(registration("n2", 2, topics=(PAYMENTS,))) == set()
    assert world.tables.topics() == ["orders"]


def test_a_master_that_changes_topics_replaces_them_all(world: World) -> None:
    world.register(registration(topics=(ORDERS, PAYMENTS), data_version=1))
    wider = ORDERS._replace(write_queues=16)
    assert world.register(registration(topics=(wider,), data_version=2)) == {"orders", "payments"}
    assert world.tables.topics() == ["orders"]
    assert world.tables.route("orders").queues == {"broker-a": wider}


def test_topics_of_an_older_data_version_are_ignored_within_a_term(world: World) -> None:
    world.register(registration("n1", term=3, data_version=9))
    assert world.register(registration("n1", term=3, data_version=8, topics=(PAYMENTS,))) == set()
    assert world.tables.topics() == ["orders"]
    # A new master counts for itself: what it has is the log's, whatever its numbers.
    world.register(registration("n2", term=4, data_version=1, topics=(PAYMENTS,)))
    assert world.tables.topics() == ["payments"]


# -- who is believed --------------------------------------------------------------------------------------


def test_of_one_node_a_lower_role_epoch_is_refused(world: World) -> None:
    world.register(registration("n1", 2, term=5, role_epoch=7))
    world.refused(registration("n1", 0, term=6, role_epoch=6), Status.NAMESRV_STALE_EPOCH)
    world.register(registration("n1", 0, term=6, role_epoch=8))
    assert world.addresses() == {0: address_of("n1")}


@pytest.mark.parametrize("broker_id", [0, 2])
def test_a_node_that_rejoined_with_a_lower_incarnation_is_believed(world: World, broker_id: int) -> None:
    """It has lost its directory; the row of its former life is still there."""
    former, now = 9 << 32, 4 << 32
    world.register(registration("n1", 0, term=5, role_epoch=former + 7))
    world.register(registration("n1", broker_id, term=6, role_epoch=now + 1))
    assert world.addresses() == ({0: address_of("n1")} if broker_id == 0 else {2: address_of("n1")})
    world.refused(registration("n1", 0, term=5, role_epoch=former + 9), Status.NAMESRV_STALE_EPOCH)
    world.refused(registration("n1", 0, term=6, role_epoch=now), Status.NAMESRV_STALE_EPOCH)
    # Nor does its former life un-register it, whose numbers are greater.
    with pytest.raises(NameServerRefused):
        world.tables.unregister("broker-a", "n1", former + 9, world.now_ms)
    world.tables.unregister("broker-a", "n1", now + 1, world.now_ms)
    assert world.ids() == {}


def test_a_node_that_rejoined_is_believed_in_the_same_term(world: World) -> None:
    world.register(registration("n1", 2, term=5, role_epoch=9 << 32))
    world.register(registration("n1", 3, term=5, role_epoch=4 << 32))
    assert world.ids() == {"n1": 3}


def test_a_term_beyond_reason_is_refused_whoever_names_it(world: World) -> None:
    """Accepted, it would be the fence that keeps the real master out."""
    world.refused(registration("n1", 0, term=2**62 + 1), Status.NAMESRV_TERM_REFUSED)
    world.register(registration("n1", 0, term=5))
    for broker_id in (0, 2, -1):
        absurd = registration("n2", broker_id, term=5 + 2**32 + 1)
        world.refused(absurd, Status.NAMESRV_TERM_REFUSED)
    world.register(registration("n1", 0, term=6, role_epoch=2))
    world.register(registration("n2", 0, term=6 + 2**32))
    assert world.addresses() == {0: address_of("n2")}


def test_slaves_bound_the_term_of_their_first_master(world: World) -> None:
    world.register(registration("n1", 2, term=5))
    world.refused(registration("n2", 0, term=5 + 2**32 + 1), Status.NAMESRV_TERM_REFUSED)
    world.register(registration("n2", 0, term=6))
    assert world.addresses()[0] == address_of("n2")


def test_the_fence_bounds_terms_while_no_node_is_left(world: World) -> None:
    world.register(registration("n1", 0, term=5))
    world.tables.unregister("broker-a", "n1", 1, world.now_ms)
    world.refused(registration("n2", 0, term=2**61), Status.NAMESRV_TERM_REFUSED)
    world.register(registration("n2", 0, term=6))


def test_a_deposed_master_does_not_take_the_place_of_one_that_has_just_gone(world: World) -> None:
    """Also if it was the last node of the name, and was there for long."""
    world.register(registration("n1", 0, term=5))
    world.now_ms += 100_000
    world.tables.unregister("broker-a", "n1", 1, world.now_ms)
    world.refused(registration("n2", 0, term=4), Status.NAMESRV_STALE_TERM)
    world.now_ms += 30_000
    world.tables.expire(world.now_ms)
    world.refused(registration("n2", 0, term=4), Status.NAMESRV_STALE_TERM)


def test_the_higher_term_takes_id_0_and_the_deposed_master_is_not_published(world: World) -> None:
    world.register(registration("n1", 0, term=5))
    assert world.register(registration("n2", 0, term=6)) == {"orders"}
    assert world.addresses() == {0: address_of("n2")}
    assert world.ids() == {"n1": -1, "n2": 0}
    world.register(registration("n1", 1, term=6, role_epoch=2))
    assert world.addresses() == {0: address_of("n2"), 1: address_of("n1")}


def test_a_claim_with_a_set_term_is_refused(world: World) -> None:
    world.register(registration("n2", 0, term=6))
    world.refused(registration("n1", 0, term=5), Status.NAMESRV_STALE_TERM)
    assert world.addresses() == {0: address_of("n2")}


@pytest.mark.parametrize("how", ["unregister", "session", "expire", "became a slave"])
def test_a_deposed_master_does_not_come_back_when_its_successor_goes(world: World, how: str) -> None:
    world.register(registration("n1", 0, term=5))
    world.register(registration("n2", 0, term=6, expire_ms=10_000), session=3)
    if how == "unregister":
        world.tables.unregister("broker-a", "n2", 1, world.now_ms)
    elif how == "session":
        world.tables.end_session(3, ("broker-a", "n2"), world.now_ms)
    elif how == "expire":
        world.now_ms += 10_001
        world.tables.expire(world.now_ms)
    else:
        world.register(registration("n2", 2, term=6, role_epoch=2))
    world.refused(registration("n1", 0, term=5), Status.NAMESRV_STALE_TERM)
    assert 0 not in world.addresses()


def test_a_log_made_anew_under_an_old_name_is_believed_after_a_while(world: World) -> None:
    """Its terms begin at 1 again. Refused claims do not keep the memory of the old one alive."""
    world.register(registration("n1", 0, term=50))
    world.tables.unregister("broker-a", "n1", 1, world.now_ms)
    world.register(registration("n2", 2, term=1))
    for _ in range(12):
        world.refused(registration("n1", 0, term=1), Status.NAMESRV_STALE_TERM)
        world.now_ms += 10_000
        world.register(registration("n2", 2, term=1))
        world.tables.expire(world.now_ms)
    world.now_ms += 1
    world.tables.expire(world.now_ms)
    world.register(registration("n1", 0, term=1))
    assert world.addresses()[0] == address_of("n1")


def test_a_log_made_anew_brings_its_topics_though_slaves_kept_the_name_in_routes(world: World) -> None:
    """Its terms and versions are lower than those of the log before, whose topics are read meanwhile."""
    world.register(registration("n1", 0, term=50, data_version=9))
    world.register(registration("n2", 2, term=1))
    world.tables.unregister("broker-a", "n1", 1, world.now_ms)
    for _ in range(3):
        world.now_ms += world.tables.limits.default_expire_ms // 2
        world.register(registration("n2", 2, term=1))
        world.tables.expire(world.now_ms)
    assert world.tables.topics() == ["orders"]
    world.register(registration("n1", 0, term=1, data_version=1, topics=(PAYMENTS,)))
    assert world.tables.topics() == ["payments"]


def test_a_master_that_stays_is_not_forgotten(world: World) -> None:
    world.register(registration("n1", 0, term=50))
    for _ in range(5):
        world.now_ms += 100_000
        world.register(registration("n1", 0, term=50))
        world.tables.expire(world.now_ms)
    world.refused(registration("n2", 0, term=49), Status.NAMESRV_STALE_TERM)


def test_the_time_of_a_term_begins_when_its_master_is_gone(world: World) -> None:
    world.register(registration("n1", 0, term=50, expire_ms=600_000))
    world.now_ms += 300_000
    world.tables.expire(world.now_ms)
    world.register(registration("n1", 1, term=51, role_epoch=2))
    world.now_ms += 100_000
    world.tables.expire(world.now_ms)
    world.refused(registration("n2", 0, term=49), Status.NAMESRV_STALE_TERM)


def test_two_masters_in_one_term_are_two_groups_with_one_name(world: World) -> None:
    world.register(registration("n1", 0, term=5))
    world.refused(registration("n2", 0, term=5), Status.NAMESRV_CONFLICT)


def test_a_name_belongs_to_one_cluster(world: World) -> None:
    world.register(registration("n1", 0))
    world.refused(registration("n2", 2, cluster="other"), Status.NAMESRV_CONFLICT)


def test_a_slaves_id_belongs_to_one_node(world: World) -> None:
    world.register(registration("n2", 2))
    world.refused(registration("n3", 2), Status.NAMESRV_CONFLICT)
    world.tables.unregister("broker-a", "n2", -1, world.now_ms)
    world.register(registration("n3", 2))


def test_an_unknown_role_lives_and_is_not_published(world: World) -> None:
    world.register(registration("n1", 0))
    assert world.register(registration("n2", -1)) == set()
    assert world.ids() == {"n1": 0, "n2": -1}
    assert world.addresses() == {0: address_of("n1")}


def test_a_master_that_no_longer_knows_its_role_goes_out_of_the_route(world: World) -> None:
    world.register(registration("n1", 0))
    assert world.register(registration("n1", -1, role_epoch=2)) == {"orders"}
    assert world.tables.topics() == []


def test_the_old_entry_goes_when_a_node_takes_another_id(world: World) -> None:
    world.register(registration("n2", 0, term=1))
    world.register(registration("n1", 1))
    assert world.register(registration("n1", 0, term=2, role_epoch=2)) == {"orders"}
    assert world.addresses() == {0: address_of("n1")}


def test_the_old_entry_goes_when_its_address_has_another_node(world: World) -> None:
    world.register(registration("n1", 0))
    world.register(registration("n2", 2, address=address_of("n1")))
    assert world.addresses() == {2: address_of("n1")}
    assert world.ids() == {"n2": 2}


def test_a_node_may_move_to_another_address(world: World) -> None:
    world.register(registration("n1", 0))
    assert world.register(registration("n1", 0, role_epoch=2, address="elsewhere:1")) == {"orders"}
    assert world.addresses() == {0: "elsewhere:1"}


def test_a_node_that_moves_and_takes_another_id_has_that_one_only(world: World) -> None:
    world.register(registration("n1", 0, term=1))
    world.register(registration("n2", 0, term=2))
    world.register(registration("n1", 2, term=2, role_epoch=2))
    assert world.register(registration("n1", 0, term=3, role_epoch=3, address="elsewhere:1")) == {"orders"}
    assert world.addresses() == {0: "elsewhere:1"}
    world.register(registration("n3", 2, term=3))
    assert world.addresses() == {0: "elsewhere:1", 2: address_of("n3")}


def test_topics_of_a_log_made_anew_are_not_older_than_those_of_the_one_before(world: World) -> None:
    """A node of the name has lived on without knowing its role."""
    world.register(registration("n1", 0, term=9, data_version=9))
    world.register(registration("n1", -1, term=9, data_version=9, role_epoch=2))
    assert world.tables.topics() == []
    limits = world.tables.limits
    for _ in range(4):
        world.now_ms += limits.default_expire_ms // 2
        assert world.tables.renew(("broker-a", "n1"), world.now_ms)
        world.tables.expire(world.now_ms)
    world.register(registration("n2", 0, term=1, data_version=1))
    assert world.tables.topics() == ["orders"]


# -- who goes ---------------------------------------------------------------------------------------------


def test_without_a_master_slaves_stay_to_be_read_from(world: World) -> None:
    world.register(registration("n1", 0))
    world.register(registration("n2", 2))
    assert world.tables.unregister("broker-a", "n1", 1, world.now_ms) == {"orders"}
    assert world.addresses() == {2: address_of("n2")}
    assert world.tables.registration_answer("broker-a") == RegistrationAnswer("", -1)


def test_with_the_last_node_everything_of_a_name_goes(world: World) -> None:
    world.register(registration("n1", 0))
    world.tables.wipe_write_permission("broker-a")
    assert world.tables.unregister("broker-a", "n1", 1, world.now_ms) == {"orders"}
    assert world.tables.topic_queue_table == {} and world.tables.cluster_addr_table == {}
    assert world.tables.brokers(world.now_ms) == [] and world.tables.write_wiped() == []


def test_an_unregistration_of_an_older_role_is_refused(world: World) -> None:
    world.register(registration("n1", 0, role_epoch=5))
    with pytest.raises(NameServerRefused) as caught:
        world.tables.unregister("broker-a", "n1", 4, world.now_ms)
    assert caught.value.status is Status.NAMESRV_STALE_EPOCH
    for name, node in (("broker-a", "n9"), ("broker-z", "n1")):
        with pytest.raises(NameServerRefused) as caught:
            world.tables.unregister(name, node, -1, world.now_ms)
        assert caught.value.status is Status.NAMESRV_BROKER_UNKNOWN


def test_the_end_of_a_stream_takes_the_node_out(world: World) -> None:
    world.register(registration("n1", 0), session=7)
    assert world.tables.end_session(7, ("broker-a", "n1"), world.now_ms) == {"orders"}
    assert world.ids() == {}


def test_the_end_of_a_stream_with_a_successor_changes_nothing(world: World) -> None:
    world.register(registration("n1", 0), session=7)
    world.register(registration("n1", 0), session=8)
    assert world.tables.end_session(7, ("broker-a", "n1"), world.now_ms) is None
    assert world.ids() == {"n1": 0}
    assert world.tables.end_session(9, ("broker-a", "n5"), world.now_ms) is None


@pytest.mark.parametrize(("wanted", "kept"), [(0, 120_000), (30_000, 30_000), (1, 10_000), (10**9, 600_000)])
def test_a_node_expires_after_the_default_or_what_it_asked_for(world: World, wanted: int, kept: int) -> None:
    world.register(registration("n1", 0, expire_ms=wanted))
    world.now_ms += kept
    assert world.tables.expire(world.now_ms) == ([], set())
    world.now_ms += 1
    assert world.tables.expire(world.now_ms) == ([("broker-a", "n1")], {"orders"})
    assert world.ids() == {}


def test_each_registration_begins_the_time_anew(world: World) -> None:
    for _ in range(3):
        world.register(registration("n1", 0))
        world.now_ms += 100_000
        assert world.tables.expire(world.now_ms) == ([], set())


# -- write permission -------------------------------------------------------------------------------------


def test_wiped_write_permission_stays_wiped_until_it_is_given_back(world: World) -> None:
    read_only = TopicConfig("archive", perm=4)
    world.register(registration("n1", 0, topics=(ORDERS, read_only)))
    world.register(registration(name="broker-b"))
    assert world.tables.wipe_write_permission("broker-a") == {"orders"}
    assert world.tables.wipe_write_permission("broker-a") == set()
    world.register(registration("n1", 0, topics=(ORDERS, read_only), data_version=5))
    perms = {name: queues.perm for name, queues in world.tables.route("orders").queues.items()}
    assert perms == {"broker-a": 4, "broker-b": 6}
    assert world.tables.write_wiped() == ["broker-a"]
    assert world.tables.wipe_write_permission("broker-a", give_back=True) == {"orders"}
    assert world.tables.route("orders").queues["broker-a"].perm == 6
    with pytest.raises(NameServerRefused):
        world.tables.wipe_write_permission("broker-z")


# -- limits and nonsense ----------------------------------------------------------------------------------


def test_tables_have_limits() -> None:
    world = World(TableLimits(max_broker_names=1, max_nodes_per_name=2, max_topics=2))
    world.register(registration("n1", 0))
    world.refused(registration(name="broker-b"), Status.NAMESRV_LIMIT)
    world.register(registration("n2", 2))
    world.refused(registration("n3", 3), Status.NAMESRV_LIMIT)
    three = tuple(TopicConfig(f"t{i}") for i in range(3))
    world.refused(registration("n1", 0, topics=three, data_version=1), Status.NAMESRV_LIMIT)
    world.register(registration("n1", 0, topics=three[:1], data_version=1))
    with pytest.raises(NameServerBusy):
        world.register(registration("n1", 0, topics=three[1:], data_version=2))


def test_one_address_brings_up_so_many_names_and_leaves_room_for_others() -> None:
    world = World(TableLimits(max_names_per_address=2))

    def register(name: str, origin: str, node: str = "n1", term: int = 1) -> None:
        world.tables.register(registration(node, name=name, term=term), world.now_ms, origin=origin)

    def is_refused(name: str, origin: str) -> bool:
        try:
            register(name, origin)
        except NameServerBusy as error:
            return error.status is Status.NAMESRV_LIMIT
        return False

    register("a", "10.0.0.1")
    register("b", "10.0.0.1")
    assert is_refused("c", "10.0.0.1")
    register("a", "10.0.0.1")  # what there is goes on
    register("c", "10.0.0.2")
    register("c", "10.0.0.1", "n2", term=2)  # a name counts for who brought it up
    assert is_refused("d", "10.0.0.1")
    world.tables.unregister("a", "n1", -1, world.now_ms)
    assert is_refused("d", "10.0.0.1"), "terms of a name are remembered for a while, so it counts"
    register("a", "10.0.0.3")
    assert is_refused("d", "10.0.0.1"), "nor does it change hands by that"
    for _ in range(2):  # first the nodes go, then the terms of their names
        world.now_ms += 200_000
        world.tables.expire(world.now_ms)
    assert not is_refused("d", "10.0.0.1")


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": ""},
        {"name": "broker a"},
        {"name": "x" * 256},
        {"node": "n\n1"},
        {"address": "nowhere"},
        {"address": "host:0"},
        {"address": "host:70000"},
        {"http_address": ":80"},
        {"broker_id": -2},
        {"term": -2},
        {"role_epoch": -1},
        {"data_version": -1},
        {"expire_ms": -1},
        {"topics": (TopicConfig("a/b"),)},
        {"topics": (TopicConfig("t", read_queues=-1),)},
        {"topics": (TopicConfig("t", write_queues=70_000),)},
        {"topics": (TopicConfig("t", perm=8),)},
    ],
)
def test_nonsense_is_refused(world: World, change: dict[str, Any]) -> None:
    world.refused(registration(**change), Status.NAMESRV_INVALID)
