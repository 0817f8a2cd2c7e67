"""What users do, with released clients in four languages on three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig, TopicConfig
from tests.clients import installed
from tests.clients.cluster import MAX_BODY, ClientCluster
from tests.clients.conftest import Run
from tests.clients.load import Load

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-scenarios")]


#: What Node.js receives at most, with all that belongs to the message.
NODE_LARGEST = MAX_BODY - (16 << 10)


@pytest.fixture(params=installed.CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def only(*clients: str) -> pytest.MarkDecorator:
    """Whose interface has it, or shows it."""
    return pytest.mark.parametrize("client", clients, indirect=True)


@pytest.fixture(scope="module", autouse=True)
def groups(cluster: ClientCluster) -> Iterator[None]:
    for name in installed.NAMES.values():
        cluster.put(
            GroupConfig(f"{name}-orderly", retry_max_times=1, consume_orderly=True),
            GroupConfig(f"{name}-failures-g", retry_max_times=5, consume_orderly=True),
            GroupConfig(f"{name}-retries", retry_max_times=1),
        )
    yield


@pytest.mark.parametrize("client", [*installed.CLIENTS, installed.OLDEST_JAVA], indirect=True)
def test_twenty_messages_arrive_once_as_they_were_sent(client: str, run: Run) -> None:
    """Quirk: each client writes CRC32 digests in a way of its own, and Node.js fails without any digest."""
    seen = run("normal")
    assert len(seen["sent"]) == 20 and seen["received"] == seen["sent"]
    assert client.startswith("java") or seen["same_ids"], "as transaction ids, too; Java does not tell them"
    assert not seen["corrupted"] and seen["tags"] == ["a"] and seen["properties"] == list(range(20))


def test_messages_of_a_group_arrive_in_order(run: Run) -> None:
    assert run("fifo")["bodies"] == [str(i) for i in range(10)]


@only("python", "node", "java")
def test_the_order_of_each_group_outlives_failures(run: Run) -> None:
    seen = run("fifo_failures")
    assert seen["succeeded"] == {group: [f"{group}{i}" for i in range(5)] for group in "ab"}
    assert seen["failures"] == {"a1": 2, "b1": 2}


def test_a_delayed_message_comes_when_it_is_due_and_a_recalled_one_never(run: Run) -> None:
    seen = run("delay")
    assert seen["bodies"] == ["late"] and not seen["early"]
    assert seen["recalled"] == seen["id"]
    refusals = ("NotFoundException", "Error", "ErrRpcStatus")
    assert seen["again"] in refusals, "quirk: of MESSAGE_NOT_FOUND Python says nothing"
    assert not seen["then"]


def test_transactions_are_committed_rolled_back_and_asked_about(run: Run) -> None:
    """Quirk: a producer of several topics in Node.js may miss the first answer to its settings."""
    seen = run("transaction")
    assert seen["bodies"] == ["commit", "orphan"] and seen["with_id"]
    assert seen["checked"] == ["orphan"]


def test_a_priority_is_kept(client: str, run: Run) -> None:
    """Quirk: producers send it only where the route has the type, and Go does not show it to consumers."""
    assert run("priority") == {"bodies": ["first"], "priority": [None if client == "go" else 3]}


@only(installed.OLDEST_JAVA)
def test_a_client_that_knows_no_priorities_consumes_from_a_topic_for_them(
    cluster: ClientCluster, run: Run
) -> None:
    """Quirk: Java before 5.2 fails on a route with a type that it does not know."""
    cluster.put(TopicConfig("java-oldest-priority", message_type="PRIORITY"))
    assert run("of_topic", topic="java-oldest-priority") == {"received": [], "send": "BadRequestException"}


def test_filters_choose_by_tag_and_by_sql92(run: Run) -> None:
    assert run("filters") == {"tags": ["a", "c"], "sql": ["b"], "none": []}


@only("python", "node")
def test_a_handle_is_replaced_by_a_change_of_its_time(run: Run) -> None:
    assert run("handles") == {"changed": True, "refused": "BadRequestException", "attempts": 2}


def test_a_message_whose_time_is_over_cannot_be_acknowledged(client: str, run: Run) -> None:
    """Quirk: Go does not look at the status of the answer."""
    assert run("expired") == {"attempts": [1, 2], "refused": "" if client == "go" else "BadRequestException"}


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


@only("python", "node", "java")
def test_in_order_a_dead_letter_makes_way_for_the_next_message(run: Run) -> None:
    assert run("push_fifo") == {"seen": ["0", "0", "1", "2"], "dead": ["0"]}


@only("go")
def test_go_goes_on_after_a_failure_in_order(run: Run) -> None:
    """Quirk: its push consumer gives the next messages of a group to the listener while it repeats one."""
    assert run("push_fifo") == {"seen": ["0", "1", "2", "0"], "dead": ["0"]}


def test_consumers_of_a_group_share_and_each_group_gets_all(run: Run) -> None:
    seen = run("shared")
    assert seen["all"] == list(range(40)) and min(seen["each"]) > 0
    assert seen["other"] == 40


def test_bodies_and_properties_reach_their_limits_and_not_beyond(client: str, run: Run) -> None:
    """Quirk: Node.js receives no more than 4 MiB at once, and Python sends nothing without a limit."""
    seen = run("limits", max_body=MAX_BODY, received=NODE_LARGEST)
    assert (seen["body"], seen["properties"]) == ("", "")
    refusal = "ErrRpcStatus" if client == "go" else "RequestHeaderFieldsTooLargeException"
    assert seen["larger_body"] and seen["larger_properties"] == refusal
    largest = MAX_BODY
    if client == "node":
        largest = NODE_LARGEST
        assert seen["received_body"] == "" and "RESOURCE_EXHAUSTED" in seen["largest"]
    assert seen["bodies"] == [1, largest] and seen["values"] == [16383]


@only("python", "node", "java")
def test_illegal_names_are_refused(run: Run) -> None:
    assert all(run("names").values())


def test_a_late_group_gets_everything(run: Run) -> None:
    everything = [str(i) for i in range(5)]
    assert run("late") == {"first": everything, "second": everything}


@only("python")
def test_a_group_that_is_reset_while_it_receives_gets_everything_again(
    client: str, cluster: ClientCluster, tmp_path: Path
) -> None:
    installed.require(client)
    name = installed.NAMES[client]
    with Load(client, tmp_path / "home", cluster.address(cluster.first), "reset") as load:
        cluster.reset(f"{name}-reset-g", f"{name}-reset")
        assert load.finish() == {"times": dict.fromkeys(map(str, range(10)), 2)}


def test_namespaces_do_not_see_each_other(run: Run) -> None:
    assert run("namespaces") == {"one": ["one"], "two": ["two"]}
