"""Registrations of three nodes through many leaderships, arriving in any order and more than once: the route
never shows a deposed master."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.errors import BrokerError
from broker_adapter.namesrv.tables import RouteTables
from broker_adapter.namesrv.values import Registration
from tests.broker_adapter.namesrv.helpers import address_of, registration

NODES = ("n1", "n2", "n3")


class History(NamedTuple):
    """What happened, and in which order the NameServer hears of it."""

    leaders: list[str]  # of term 1, 2, ...
    arrivals: list[Registration]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """In each term one node leads; the others learn of it or not. A node's epochs and terms only grow."""
    leaders = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=6))
    epochs = dict.fromkeys(NODES, 0)
    said = []
    for term, leader in enumerate(leaders, 1):
        for number, node in enumerate(NODES, 1):
            if node != leader and not draw(st.booleans()):
                continue
            epochs[node] += 1
            kind = 0 if node == leader else draw(st.sampled_from([number, -1]))
            said.append(registration(node, kind, term=term, role_epoch=epochs[node]))
    arrivals = draw(st.lists(st.sampled_from(said), max_size=3 * len(said)))
    return History(leaders, arrivals)


@settings(max_examples=300)
@given(histories())
def test_the_route_shows_at_most_one_master_of_the_highest_term_heard_of(history: History) -> None:
    tables = RouteTables()
    highest = 0
    for now_ms, arrived in enumerate(history.arrivals):
        try:
            tables.register(arrived, now_ms)
        except BrokerError:
            continue
        finally:
            masters = [entry for entry in tables.brokers(now_ms) if entry.broker_id == 0]
            assert len(masters) <= 1
            shown = tables.route("orders").brokers.get("broker-a", {})
            assert (0 in shown) == bool(masters and shown)
            if masters:
                # Of every claim that was accepted, the highest; and its node has led in that term.
                assert masters[0].term >= highest
                highest = masters[0].term
                assert history.leaders[highest - 1] == masters[0].node_id
                assert shown[0] == address_of(masters[0].node_id)


@settings(max_examples=200)
@given(histories())
def test_the_newest_word_of_every_node_leads_to_the_same_route(history: History) -> None:
    """Whatever came before, in whatever order: once the last registration of each node has been heard, the
    master is that of the highest term, if it still says so."""
    newest: dict[str, Registration] = {}
    for arrived in history.arrivals:
        known = newest.get(arrived.node_id)
        if known is None or known.role_epoch < arrived.role_epoch:
            newest[arrived.node_id] = arrived
    tables, believed = RouteTables(), []
    for arrived in (*history.arrivals, *newest.values(), *newest.values()):
        try:
            tables.register(arrived, 0)
        except BrokerError:
            continue
        believed.append(arrived)
    # A claim that came after newer words of its own node is not believed, and says nothing of others.
    top = max((r for r in believed if r.broker_id == 0), key=lambda r: r.term, default=None)
    masters = [entry.term for entry in tables.brokers(0) if entry.broker_id == 0]
    if top is not None and newest[top.node_id].broker_id == 0:
        assert masters == [newest[top.node_id].term] == [top.term]
    else:
        assert masters == []
