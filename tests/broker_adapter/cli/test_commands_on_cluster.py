"""The broker's commands against three running nodes and a NameServer."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from dledger.cli.local.local_cluster import LocalCluster, LocalNode

from .conftest import BrokerCommand, wait_for_master

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-cli-cluster")]


def table(text: str) -> list[list[str]]:
    """Cells of the rows below the head."""
    return [line.split() for line in text.splitlines()[1:]]


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_topics_are_created_changed_listed_and_deleted(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "plans", "--queues", "2")
    assert ["plans", "2", "2", "rw", "all"] in table(on_broker("broker", "topic", "list").stdout)
    created = on_broker(
        "broker", "topic", "create", "plans", "--queues", "3", "--perm", "r", "--type", "FIFO"
    )
    assert "NameServer" not in created.stderr  # it knows the type, too
    assert ["plans", "3", "3", "r", "FIFO"] in table(on_broker("broker", "topic", "list").stdout)
    kept = on_broker("broker", "topic", "create", "plans", "--perm", "rw")
    assert "plans: 3 queues, rw" in kept.stdout
    assert ["plans", "3", "3", "rw", "FIFO"] in table(on_broker("broker", "topic", "list").stdout)
    on_broker("broker", "topic", "create", "plans", "--type", "unspecified", "--perm", "r")
    assert ["plans", "3", "3", "r", "all"] in table(on_broker("broker", "topic", "list").stdout)
    on_broker("broker", "topic", "create", "urgent", "--type", "priority")
    assert ["urgent", "4", "4", "rw", "PRIORITY"] in table(on_broker("broker", "topic", "list").stdout)
    refused = on_broker("broker", "produce", "--topic", "plans", stdin=b"x\n", code=1)
    assert "721 TOPIC_NOT_WRITABLE" in refused.stderr and "0 lines acknowledged, 1 failed" in refused.stderr
    on_broker("broker", "topic", "delete", "plans")
    assert "plans" not in on_broker("broker", "topic", "list").stdout
    missing = on_broker("broker", "topic", "stats", "plans", code=1)
    assert missing.stderr.startswith("error 720 TOPIC_UNKNOWN: ")
    assert "dledger broker topic list" in missing.stderr and missing.stderr.count("\n") == 1


def test_queues_with_messages_are_removed_by_force_only(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "shrinking", "--queues", "8")
    on_broker("broker", "produce", "--topic", "shrinking", "--queue", "7", stdin=b"x\n")
    fewer = ("broker", "topic", "create", "shrinking", "--queues", "4")
    refused = on_broker(*fewer, code=1)
    assert "724 QUEUES_NOT_EMPTY" in refused.stderr and "--force" in refused.stderr
    assert ["shrinking", "8", "8", "rw", "all"] in table(on_broker("broker", "topic", "list").stdout)
    assert "shrinking: 4 queues, rw" in on_broker(*fewer, "--force").stdout


@pytest.mark.smoke
def test_what_is_produced_is_consumed_by_a_group_once(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "orders")
    sent = on_broker("broker", "produce", "--topic", "orders", stdin=b"a\n\nb\xff\nlast")
    assert "4 lines acknowledged" in sent.stderr
    assert "last offsets in orders: 0: 0, 1: 0, 2: 0, 3: 0" in sent.stderr
    stats = on_broker("broker", "topic", "stats", "orders").stdout
    assert "4 messages in 4 queues" in stats
    first = on_broker("broker", "consume", "--topic", "orders", "--group", "billing")
    assert sorted(first.stdout_bytes.split(b"\n")[:-1]) == [b"", b"a", b"b\xff", b"last"]
    assert "4 messages, committed for billing" in first.stderr
    again = on_broker("broker", "consume", "--topic", "orders", "--group", "billing")
    assert again.stdout_bytes == b""
    shown = on_broker("broker", "offsets", "show", "billing").stdout
    assert [row[2:] for row in table(shown)[:4]] == [["1", "0", "1", "0"]] * 4
    assert "lag 0" in shown


def test_a_count_ends_a_consumer_and_the_next_one_goes_on(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "counted", "--queues", "1")
    lines = b"".join(b"%d\n" % n for n in range(20))
    on_broker("broker", "produce", "--topic", "counted", "--queue", "0", stdin=lines)
    args = ("broker", "consume", "--topic", "counted", "--group", "counters")
    assert on_broker(*args, "--count", "7").stdout_bytes == b"".join(b"%d\n" % n for n in range(7))
    offsets = json.loads(on_broker("broker", "offsets", "show", "counters", "--json").stdout)
    assert [(q["offset"], q["lag"]) for q in offsets["queues"]] == [(7, 13)]
    assert on_broker(*args).stdout_bytes == b"".join(b"%d\n" % n for n in range(7, 20))
    reset = on_broker("broker", "offsets", "reset", "counters", "--to", "18").stdout
    assert table(reset)[0] == ["counted", "0", "18"]
    assert on_broker(*args).stdout_bytes == b"18\n19\n"
    on_broker("broker", "offsets", "reset", "counters", "--to-earliest")
    assert on_broker(*args, "--count", "1").stdout_bytes == b"0\n"
    on_broker("broker", "offsets", "reset", "counters", "--to-latest", "--topic", "counted", "--queue", "0")
    assert on_broker(*args).stdout_bytes == b""
    on_broker("broker", "offsets", "reset", "counters", "--to-time", "1h")
    assert on_broker(*args).stdout_bytes == lines
    beyond = on_broker("broker", "offsets", "reset", "counters", "--to", "1000", code=1)
    assert "766 OFFSET_OUT_OF_RANGE" in beyond.stderr


def test_a_reset_beyond_one_of_several_queues_changes_none(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "uneven", "--queues", "2")
    on_broker("broker", "produce", "--topic", "uneven", "--queue", "0", stdin=b"a\nb\nc\n")
    on_broker("broker", "produce", "--topic", "uneven", "--queue", "1", stdin=b"d\n")
    on_broker("broker", "consume", "--topic", "uneven", "--group", "even")
    on_broker("broker", "offsets", "reset", "even", "--to-earliest")
    refused = on_broker("broker", "offsets", "reset", "even", "--to", "2", code=1)
    assert "766 OFFSET_OUT_OF_RANGE" in refused.stderr and "nothing was reset" in refused.stderr
    offsets = json.loads(on_broker("broker", "offsets", "show", "even", "--json").stdout)
    assert [queue["offset"] for queue in offsets["queues"]] == [0, 0]


@pytest.mark.parametrize("start", ["latest", "2099-01-01T00:00"])
def test_messages_that_arrive_between_two_runs_of_a_group_are_consumed(
    on_broker: BrokerCommand, start: str
) -> None:
    """The first run is given nothing: the group must know all the same where it has started."""
    topic = f"between-{start[:4]}"
    on_broker("broker", "topic", "create", topic, "--queues", "1")
    on_broker("broker", "produce", "--topic", topic, stdin=b"before\n")
    args = ("broker", "consume", "--topic", topic, "--group", topic, "--from", start)
    assert on_broker(*args).stdout_bytes == b""
    on_broker("broker", "produce", "--topic", topic, stdin=b"after\n")
    assert on_broker(*args).stdout_bytes == b"after\n"


def test_queues_are_read_without_a_group(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "plain", "--queues", "2")
    for tag, text in (("red", b"r1\nr2\n"), ("blue", b"b1\n")):
        on_broker("broker", "produce", "--topic", "plain", "--queue", "1", "--tag", tag, stdin=text)
    args = ("broker", "consume", "--topic", "plain")
    assert on_broker(*args).stdout_bytes == b"r1\nr2\nb1\n"
    assert on_broker(*args, "--tag", "blue || green").stdout_bytes == b"b1\n"
    assert on_broker(*args, "--queue", "1", "--offset", "1", "--count", "1").stdout_bytes == b"r2\n"
    assert on_broker(*args, "--from", "latest").stdout_bytes == b""
    assert on_broker(*args, "--from", "1h", "--count", "1").stdout_bytes == b"r1\n"
    outside = on_broker(*args, "--queue", "1", "--offset", "9", code=1)
    assert "741 OFFSET_ABOVE_MAXIMUM" in outside.stderr
    found = objects(on_broker(*args, "--json").stdout)
    assert [(one["queue"], one["offset"], one["tag"], one["body"]) for one in found] == [
        (1, 0, "red", "r1"),
        (1, 1, "red", "r2"),
        (1, 2, "blue", "b1"),
    ]


def test_messages_are_found_by_key_id_and_offset(on_broker: BrokerCommand, cluster: LocalCluster) -> None:
    on_broker("broker", "topic", "create", "keyed", "--queues", "3")
    lines = b"A17,tea\nB18,pot\nA17,cup\nA17\n"
    options = ("--key-field", "1", "--separator", ",", "--ordered")
    on_broker("broker", "produce", "--topic", "keyed", *options, stdin=lines)
    query = ("broker", "query", "--topic", "keyed", "--key", "A17", "--json")

    found: list[dict[str, Any]] = []

    def indexed(nodes: Sequence[LocalNode]) -> LocalNode | None:
        """The index comes after the answer to a send."""
        found[:] = objects(on_broker(*query, code=None).stdout)
        return nodes[0] if len(found) >= 3 else None

    cluster.wait_until(indexed, 60, "index with all messages of a key")
    assert [one["body"] for one in found] == ["A17", "A17,cup", "A17,tea"], "the newest first"
    assert len({one["queue"] for one in found}) == 1, "one key, one queue"
    for option in (
        ("--topic", "keyed", "--id", found[2]["message_id"]),
        ("--id", found[2]["offset_id"]),
        ("--topic", "keyed", "--queue", str(found[2]["queue"]), "--offset", str(found[2]["offset"])),
    ):
        (one,) = objects(on_broker("broker", "query", *option, "--json").stdout)
        assert one == found[2]
    shown = on_broker("broker", "query", "--topic", "keyed", "--key", "B18").stdout
    assert "keys        B18\n" in shown and "body        B18,pot\n" in shown
    nothing = on_broker("broker", "query", "--topic", "keyed", "--key", "nobody", code=1)
    assert "742 MESSAGE_NOT_FOUND" in nothing.stderr
    assert "736 MESSAGE_ID_INVALID" in on_broker("broker", "query", "--id", "zz", code=1).stderr


def test_a_line_too_long_is_an_error_of_that_line(on_broker: BrokerCommand) -> None:
    text = b"short\n" + b"x" * 20 + b"\nnever\n"
    run = on_broker(
        "broker", "produce", "--topic", "limits", "--max-line-bytes", "10", "--batch", "5", stdin=text, code=1
    )
    assert "1 line acknowledged, 1 failed" in run.stderr
    assert "line 2 is longer than 10 bytes" in run.stderr
    assert "the first affected line is line 2" in run.stderr


def test_groups_are_created_listed_and_deleted(on_broker: BrokerCommand) -> None:
    on_broker("broker", "group", "create", "auditors")
    assert ["auditors"] in [row[:1] for row in table(on_broker("broker", "group", "list").stdout)]
    on_broker("broker", "group", "create", "auditors", "--orderly", "--retries", "-1")
    assert ["auditors", "yes", "-1", "yes"] in table(on_broker("broker", "group", "list").stdout)
    on_broker("broker", "group", "create", "auditors", "--retries", "3")
    assert ["auditors", "yes", "3", "yes"] in table(on_broker("broker", "group", "list").stdout)
    on_broker("broker", "group", "create", "auditors", "--not-orderly")
    assert ["auditors", "yes", "3", "no"] in table(on_broker("broker", "group", "list").stdout)
    assert on_broker("broker", "offsets", "show", "auditors").stdout == (
        "auditors has no committed offsets, so that its lag is unknown\n"
    )
    on_broker("broker", "group", "delete", "auditors")
    assert "auditors" not in on_broker("broker", "group", "list").stdout
    unknown = on_broker("broker", "offsets", "show", "auditors", code=1)
    assert "760 GROUP_UNKNOWN" in unknown.stderr and "dledger broker group list" in unknown.stderr


def test_a_follower_commits_and_leaves_on_ctrl_c(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "stream", "--queues", "1")
    args = ("broker", "consume", "--topic", "stream", "--group", "followers", "--follow")
    with on_broker.spawn(*args) as process:
        on_broker("broker", "produce", "--topic", "stream", stdin=b"one\ntwo\n")
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert error == b"2 messages, committed for followers\n"
    offsets = json.loads(on_broker("broker", "offsets", "show", "followers", "--json").stdout)
    assert [queue["offset"] for queue in offsets["queues"]] == [2]


def test_the_nodes_know_their_name_server(cluster: LocalCluster, command: BrokerCommand) -> None:
    servers = ("--servers", ",".join(cluster.addresses))
    command("broker", "topic", "create", "direct", *servers)
    command("broker", "produce", "--topic", "direct", *servers, stdin=b"x\n")
    consumed = command("broker", "consume", "--topic", "direct", "--group", "straight", *servers)
    assert consumed.stdout_bytes == b"x\n"
    assert len(json.loads(command("broker", "status", "--json", *servers).stdout)["nodes"]) == 3


def test_status_shows_roles_lag_and_registrations(cluster: LocalCluster, on_broker: BrokerCommand) -> None:
    master = wait_for_master(cluster)
    rows = {row[0]: row for row in table(on_broker("broker", "status").stdout)}
    assert rows[master.node_id][2:4] == ["SYNC_MASTER", "0"]
    assert sorted(row[2] for row in rows.values()) == ["SLAVE", "SLAVE", "SYNC_MASTER"]
    nodes = json.loads(on_broker("broker", "status", "--json").stdout)["nodes"]
    assert [node["writable"] for node in nodes].count(True) == 1
    assert {"dispatch_behind_bytes", "role_change", "nameservers", "term"} <= set(nodes[0])
    shown = on_broker("cluster", "status", "--dir", str(cluster.directory))
    nodes_table, _, ports_table = shown.stdout.partition("\n\n")
    head, *body = nodes_table.splitlines()
    assert head.split()[-3:] == ["broker", "dispatch", "lag"]
    assert body[-1].split()[:2] == ["namesrv", "running"]
    assert any(line.split()[-3:] == ["SYNC_MASTER", "0", "B"] for line in body)
    ports = {line.split("  ")[0]: line for line in ports_table.splitlines()[1:]}
    names = ["log", "status page", "NameServer", "remoting", "send-only"]
    has_page = bool(cluster.plan.companions[0].http_address)
    assert list(ports) == names + ["NameServer's page"] * has_page
    assert " ".join(cluster.addresses) in ports["log"] and "RocketMQ 5 clients" in ports["log"]
    assert cluster.plan.companions[0].address in ports["NameServer"] and "--namesrv" in ports["NameServer"]
    for node in cluster.plan.nodes:
        assert node.remoting_address in ports["remoting"] and node.send_address in ports["send-only"]


def test_what_does_not_exist_cannot_be_deleted(on_broker: BrokerCommand) -> None:
    topic = on_broker("broker", "topic", "delete", "nothing", code=1).stderr
    assert topic.startswith("error 720 TOPIC_UNKNOWN: topic 'nothing' does not exist on any broker")
    group = on_broker("broker", "group", "delete", "nothing", code=1).stderr
    assert group.startswith("error 760 GROUP_UNKNOWN: group 'nothing' does not exist on any broker")


def test_a_group_with_members_is_deleted_by_force_only(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "manned", "--queues", "1")
    on_broker("broker", "produce", "--topic", "manned", stdin=b"one\n")
    with on_broker.spawn("broker", "consume", "--topic", "manned", "--group", "crew", "--follow") as process:
        assert process.stdout is not None and process.stdout.readline() == b"one\n"
        refused = on_broker("broker", "group", "delete", "crew", code=1).stderr
        assert "error 725 GROUP_IN_USE: crew has 1 connected members: " in refused and "--force" in refused
        assert "crew" in on_broker("broker", "group", "list").stdout
        on_broker("broker", "group", "delete", "crew", "--force")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_a_topic_of_the_broker_itself_is_not_created(on_broker: BrokerCommand) -> None:
    refused = on_broker("broker", "topic", "create", "SCHEDULE_TOPIC_XXXX", code=1)
    assert "error 769 TOPIC_RESERVED" in refused.stderr
    assert "SCHEDULE_TOPIC_XXXX" not in on_broker("broker", "topic", "list").stdout


@pytest.mark.parametrize("group", [(), ("--group", "heads")])
def test_consume_ends_with_the_reader_of_its_output(on_broker: BrokerCommand, group: tuple[str, ...]) -> None:
    """Even if no further message arrives."""
    on_broker("broker", "produce", "--topic", "heads", stdin=b"one")
    with on_broker.spawn("broker", "consume", "--topic", "heads", *group, "--follow") as process:
        assert process.stdout is not None and process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0


def test_queues_that_cannot_be_read_are_named(on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "writable", "--perm", "w")
    on_broker("broker", "topic", "create", "narrow", "--queues", "2")
    for group in ((), ("--group", "readers"), ("--group", "readers", "--follow")):
        refused = on_broker("broker", "consume", "--topic", "writable", *group, code=1)
        assert refused.stderr.startswith("error 722 TOPIC_NOT_READABLE: writable has no readable queue")
    unknown = "error 765 QUEUE_UNKNOWN: narrow has no queue 7: its queues are 0 to 1"
    for command in (("consume",), ("query", "--offset", "0")):
        refused = on_broker("broker", *command, "--topic", "narrow", "--queue", "7", code=1)
        assert refused.stderr.startswith(unknown)
    reset = ("broker", "offsets", "reset", "readers", "--topic", "narrow", "--queue", "7", "--to-latest")
    assert on_broker(*reset, code=1).stderr.startswith(unknown)


def test_an_id_of_a_producer_needs_a_topic(on_broker: BrokerCommand) -> None:
    for message_id in ("7F0000010000A1B2C3D4000102030405", "7F00000100000001000000000000000A"):
        refused = on_broker("broker", "query", "--id", message_id, code=1).stderr
        assert f"if {message_id} is the message id of a producer, pass --topic" in refused


def test_the_role_of_a_replicated_broker_is_not_changed_by_hand(
    cluster: LocalCluster, on_broker: BrokerCommand
) -> None:
    address = cluster.plan.nodes[0].remoting_address
    refused = on_broker("broker", "role", "master", "--server", address, code=1).stderr
    assert "error 802 CODE_UNKNOWN" in refused and "`dledger transfer --to NODE`" in refused


# The last ones: they hurt the cluster.


def test_a_dead_name_server_is_said_so_and_comes_back_by_its_name(
    cluster: LocalCluster, on_broker: BrokerCommand
) -> None:
    where = ("--dir", str(cluster.directory))
    assert "SIGKILL to namesrv" in on_broker("cluster", "kill", *where, "namesrv").stdout
    shown = on_broker("cluster", "status", *where).stdout
    assert "namesrv is down: killed by SIGKILL" in shown
    down = on_broker("broker", "topic", "list", "--timeout", "0.2", code=1)
    assert "705 NOT_CONNECTED: no NameServer responded" in down.stderr and "--namesrv" in down.stderr
    status = on_broker("broker", "status", "--timeout", "0.2", code=1)
    assert status.stderr.startswith("error 705 NOT_CONNECTED: no NameServer responded") and not status.stdout
    on_broker("cluster", "restart-node", *where, "namesrv")
    # Slaves may register first: then the NameServer knows topics, and nobody who could make a new one.
    while on_broker("broker", "topic", "create", "back", code=None).exit_code:
        assert "namesrv" in cluster.running()
    on_broker("broker", "produce", "--topic", "back", stdin=b"again\n")
    assert on_broker("broker", "consume", "--topic", "back").stdout_bytes == b"again\n"


def test_messages_and_offsets_survive_the_master(cluster: LocalCluster, on_broker: BrokerCommand) -> None:
    on_broker("broker", "topic", "create", "kept", "--queues", "1")
    on_broker("broker", "produce", "--topic", "kept", stdin=b"1\n2\n3\n")
    args = ("broker", "consume", "--topic", "kept", "--group", "keepers")
    assert on_broker(*args, "--count", "2").stdout_bytes == b"1\n2\n"
    (stored,) = objects(on_broker("broker", "consume", "--topic", "kept", "--count", "1", "--json").stdout)
    old = wait_for_master(cluster)
    cluster.kill(old.node_id)
    on_broker("broker", "produce", "--topic", "kept", "--timeout", "60", stdin=b"4\n")
    assert on_broker(*args).stdout_bytes == b"3\n4\n"
    # The id contains the address of the dead node. The others have the same record.
    (found,) = objects(on_broker("broker", "query", "--id", stored["offset_id"], "--json").stdout)
    assert found["body"] == "1"
    rows = on_broker("broker", "status").stdout
    assert "down" in rows and rows.count("SYNC_MASTER") == 1
    cluster.start_node(old.node_id)
    wait_for_master(cluster)
