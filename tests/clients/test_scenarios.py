"""What users do, with both released clients on three nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_adapter.api import GroupConfig
from tests.clients.cluster import MAX_BODY, ClientCluster
from tests.clients.conftest import Run

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-scenarios")]


@pytest.fixture(params=["python", "node"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", autouse=True)
def groups(cluster: ClientCluster) -> Iterator[None]:
    for name in ("py", "node"):
        cluster.put(
            GroupConfig(f"{name}-orderly", retry_max_times=1, consume_orderly=True),
            GroupConfig(f"{name}-failures-g", retry_max_times=5, consume_orderly=True),
            GroupConfig(f"{name}-retries", retry_max_times=1),
        )
    yield


def test_twenty_messages_arrive_once_as_they_were_sent(run: Run) -> None:
    """Quirk: each client writes CRC32 digests in a way of its own, and Node.js fails without any digest."""
    seen = run("normal")
    assert len(seen["sent"]) == 20 and seen["received"] == seen["sent"]
    assert seen["same_ids"], "as transaction ids, too"
    assert not seen["corrupted"] and seen["tags"] == ["a"] and seen["properties"] == list(range(20))


def test_messages_of_a_group_arrive_in_order(run: Run) -> None:
    assert run("fifo")["bodies"] == [str(i) for i in range(10)]


def test_the_order_of_each_group_outlives_failures(run: Run) -> None:
    seen = run("fifo_failures")
    assert seen["succeeded"] == {group: [f"{group}{i}" for i in range(5)] for group in "ab"}
    assert seen["failures"] == {"a1": 2, "b1": 2}


def test_a_delayed_message_comes_when_it_is_due_and_a_recalled_one_never(run: Run) -> None:
    seen = run("delay")
    assert seen["bodies"] == ["late"] and not seen["early"]
    assert seen["recalled"] == seen["id"]
    assert seen["again"] in ("NotFoundException", "Error"), "quirk: of MESSAGE_NOT_FOUND Python says nothing"
    assert not seen["then"]


def test_transactions_are_committed_rolled_back_and_asked_about(run: Run) -> None:
    """Quirk: a producer of several topics in Node.js may miss the first answer to its settings."""
    seen = run("transaction")
    assert seen["bodies"] == ["commit", "orphan"] and seen["with_id"]
    assert seen["checked"] == ["orphan"]


def test_a_priority_is_kept(run: Run) -> None:
    assert run("priority") == {"bodies": ["first"], "priority": [3]}


def test_filters_choose_by_tag_and_by_sql92(run: Run) -> None:
    assert run("filters") == {"tags": ["a", "c"], "sql": ["b"], "none": []}


def test_a_handle_is_replaced_by_a_change_of_its_time(run: Run) -> None:
    assert run("handles") == {"changed": True, "refused": "BadRequestException", "attempts": 2}


def test_a_message_whose_time_is_over_cannot_be_acknowledged(run: Run) -> None:
    assert run("expired") == {"attempts": [1, 2], "refused": "BadRequestException"}


def test_receiving_by_thirties_loses_and_repeats_nothing(run: Run) -> None:
    """Quirk: Node.js sends to queue 0 and receives from it only, of a topic with four."""
    assert run("many", count=300) == {"sent": 300, "received": 300, "same": True, "most": 30}


def test_a_push_consumer_gets_again_what_it_failed_at(run: Run) -> None:
    """Quirk: Python does not start without an answer to its settings, nor Node.js without pauses in it."""
    assert run("push")["seen"] == [["0", 1], ["1", 1], ["1", 2], ["2", 1]]


def test_what_fails_too_often_becomes_a_dead_letter(run: Run) -> None:
    """Quirk: push consumers leave it to the server, and Node.js asks for its next try after 0 or 1 ms."""
    seen = run("dead_letters")
    assert seen.pop("pause_ms") >= 900
    assert seen == {"attempts": [1, 2], "dead": ["bad"], "same_id": True}


def test_in_order_a_dead_letter_makes_way_for_the_next_message(run: Run) -> None:
    assert run("push_fifo") == {"seen": ["0", "0", "1", "2"], "dead": ["0"]}


def test_consumers_of_a_group_share_and_each_group_gets_all(run: Run) -> None:
    seen = run("shared")
    assert seen["all"] == list(range(40)) and min(seen["each"]) > 0
    assert seen["other"] == 40


def test_bodies_and_properties_reach_their_limits_and_not_beyond(run: Run) -> None:
    """Quirk: Node.js receives no more than 4 MiB at once, and Python sends nothing without a limit."""
    seen = run("limits", max_body=MAX_BODY)
    assert (seen["body"], seen["properties"]) == ("", "")
    assert seen["larger_body"] and seen["larger_properties"] == "RequestHeaderFieldsTooLargeException"
    assert seen["bodies"] == [1, MAX_BODY] and seen["values"] == [16383]


def test_illegal_names_are_refused(run: Run) -> None:
    assert all(run("names").values())


def test_a_late_group_gets_everything(run: Run) -> None:
    everything = [str(i) for i in range(5)]
    assert run("late") == {"first": everything, "second": everything}


def test_namespaces_do_not_see_each_other(run: Run) -> None:
    assert run("namespaces") == {"one": ["one"], "two": ["two"]}
