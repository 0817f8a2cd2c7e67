"""What the nodes say, put together: the leader among several claims, lag, elections by term."""

from __future__ import annotations

import asyncio

import pytest

from dledger.status.cluster import ClusterCache, ClusterView, NodeAnswer, elections_by_term
from dledger.status.model import ElectionEvent, NodeStatus
from tests.status.fakes import FakeSource, make_follower, make_status


def view_of(source: FakeSource) -> ClusterView:
    return ClusterView(source.node_status(), source.answers, 1_000)


def event(unix_ms: int, term: int, cause: str, leader_id: str = "") -> ElectionEvent:
    role = {"won": "LEADER", "leader-seen": "FOLLOWER"}.get(cause, "CANDIDATE")
    return ElectionEvent(unix_ms, term, role, leader_id, cause)


def test_of_two_leaders_the_one_of_the_higher_term_counts() -> None:
    source = FakeSource()
    source.change("n2", role="LEADER", term=8, leader_id="n2")
    view = view_of(source)
    assert view.leader is not None
    assert (view.leader.node_id, view.term) == ("n2", 8)


def test_no_leader() -> None:
    source = FakeSource("n2")
    source.answers["n1"] = "gone"
    view = view_of(source)
    assert view.leader is None
    assert view.lag_of("n3") is None
    body = view.to_json()
    assert body["leader"] is None
    assert {n["lag_entries"] for n in body["nodes"]} == {None}


def test_lag_is_the_leaders_word() -> None:
    view = view_of(FakeSource())
    assert view.lag_of("n1") == (0, 0)
    assert view.lag_of("n2") == (3, 900)
    assert view.lag_of("stranger") is None


def test_a_member_that_was_not_asked_is_shown_all_the_same() -> None:
    source = FakeSource()
    del source.answers["n3"]
    n3 = view_of(source).to_json()["nodes"][2]
    assert (n3["node_id"], n3["reachable"], n3["error"]) == ("n3", False, "not queried")
    assert n3["http_address"] == "127.0.0.1:8093"


def test_answers_of_nodes_that_are_no_members_are_shown() -> None:
    source = FakeSource()
    source.answers["n4"] = make_status("n4", "FOLLOWER", address="10.0.0.4:1", http_address="10.0.0.4:2")
    source.answers["n5"] = "unknown cluster"
    n4, n5 = view_of(source).to_json()["nodes"][3:]
    assert (n4["node_id"], n4["address"], n4["http_address"]) == ("n4", "10.0.0.4:1", "10.0.0.4:2")
    assert (n5["node_id"], n5["address"], n5["error"]) == ("n5", "", "unknown cluster")


def test_elections_are_told_by_term_newest_first() -> None:
    terms = elections_by_term(
        [
            make_status("n1", elections=(event(10, 1, "timeout"), event(11, 1, "won", "n1"))),
            make_status("n2", elections=(event(12, 1, "leader-seen", "n1"), event(50, 2, "won", "n2"))),
        ]
    )
    assert [(t["term"], t["leader_id"], t["unix_ms"]) for t in terms] == [(2, "n2", 50), (1, "n1", 11)]
    assert [(e["node_id"], e["cause"]) for e in terms[1]["events"]] == [
        ("n1", "timeout"),
        ("n1", "won"),
        ("n2", "leader-seen"),
    ]
    assert (terms[1]["cause"], terms[1]["cause_node_id"]) == ("timeout", "n1")
    assert terms[0]["cause"] == ""


def test_the_reason_of_a_term_is_the_winners_last_one_before_it_won() -> None:
    (term,) = elections_by_term(
        [
            make_status(
                "n1", elections=(event(5, 3, "start"), event(8, 3, "stream-lost"), event(9, 3, "won"))
            ),
            # n2 loses that leader later, in the same term: that is no reason for it.
            make_status("n2", elections=(event(4, 3, "timeout"), event(70, 3, "timeout"))),
        ]
    )
    assert (term["cause"], term["cause_node_id"], term["leader_id"]) == ("stream-lost", "n1", "n1")


def test_a_term_without_a_known_winner() -> None:
    (term,) = elections_by_term(
        [make_status("n2", elections=(event(4, 3, "timeout"), event(6, 3, "leader-seen", "n9")))]
    )
    assert (term["leader_id"], term["cause"], term["cause_node_id"]) == ("n9", "timeout", "n2")


def test_a_leader_that_lost_its_majority() -> None:
    (term,) = elections_by_term([make_status("n1", elections=(event(4, 3, "quorum-lost"),))])
    assert (term["lost_by"], term["leader_id"], term["cause"]) == ("n1", "n1", "")


def test_only_the_last_terms_are_told() -> None:
    terms = elections_by_term([make_status("n1", elections=tuple(event(i, i, "won") for i in range(40)))])
    assert [t["term"] for t in terms] == list(range(39, 27, -1))


def test_a_leader_that_never_heard_of_a_follower_does_not_know_its_lag() -> None:
    source = FakeSource()
    source.change("n1", followers=(make_follower("n2", match_index=-1, lag_entries=5),))
    assert view_of(source).lag_of("n2") is None


class SlowSource:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: asyncio.Future[dict[str, NodeAnswer]] = asyncio.get_running_loop().create_future()

    def node_status(self) -> NodeStatus:
        return make_status("n1", term=9)

    async def cluster_status(self) -> dict[str, NodeAnswer]:
        self.asked += 1
        return await self.answer


async def test_a_caller_that_leaves_does_not_cancel_the_others() -> None:
    source = SlowSource()
    cache = ClusterCache(source.node_status, source.cluster_status)
    first, second = (asyncio.ensure_future(cache.view()) for _ in range(2))
    await asyncio.wait([first, second], timeout=0)
    first.cancel()
    source.answer.set_result({"n1": make_status("n1", term=1)})
    assert (await second).term == 9, "a node's own status is newer than what came by way of others"
    assert first.cancelled() and source.asked == 1


async def test_a_member_that_leads_a_cluster_of_its_own_is_not_the_leader() -> None:
    source = SlowSource()
    cache = ClusterCache(source.node_status, source.cluster_status)
    promoted = make_status("n3", "LEADER", term=1 << 24, cluster_id="orders-r1")
    source.answer.set_result({"n2": make_status("n2", "FOLLOWER"), "n3": promoted})
    view = await cache.view()
    assert view.leader is not None and view.leader.node_id == source.node_status().node_id
    assert view.term == 9 and view.answers["n3"] == "it is a node of cluster 'orders-r1'"


async def test_after_an_error_it_asks_again() -> None:
    source = SlowSource()
    cache = ClusterCache(source.node_status, source.cluster_status)
    source.answer.set_exception(OSError("no"))
    with pytest.raises(OSError, match="no"):
        await cache.view()
    source.answer = asyncio.get_running_loop().create_future()
    source.answer.set_result({})
    assert [status.node_id for status in (await cache.view()).statuses] == [source.node_status().node_id]


async def test_an_old_view_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.status.cluster.CACHE_SECONDS", 0.0)
    source = SlowSource()
    source.answer.set_result({})
    cache = ClusterCache(source.node_status, source.cluster_status)
    await cache.view()
    await cache.view()
    assert source.asked == 2


async def test_close_ends_a_question_under_way() -> None:
    source = SlowSource()
    cache = ClusterCache(source.node_status, source.cluster_status)
    waiting = asyncio.ensure_future(cache.view())
    await asyncio.wait([waiting], timeout=0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
