"""Which of the clients of the cluster is told."""

from __future__ import annotations

from collections import Counter

import pytest

from broker_adapter.endpoints.forwarding.frames import client_to_pb, clients_from_pb
from broker_adapter.endpoints.v5.clients import ClientInfo, ClientStreams
from broker_adapter.endpoints.v5.connected import ConnectedClients, RemoteClients
from broker_adapter.v1 import forward_pb2
from broker_adapter.v2 import service_pb2 as calls

COMMAND = calls.TelemetryCommand(print_thread_stack_trace_command={"nonce": "n"})
ORDERS = frozenset({"orders"})


def test_a_strangers_stream_with_the_producers_id_keeps_the_question_from_nobody() -> None:
    """The node of the stranger's stream takes the command and drops it, as the account may not see it."""
    told = list[str]()
    connected = ConnectedClients(ClientStreams(10), now_s=lambda: 0.0)
    for name in ("the stranger's", "the producer's"):

        def tell(client_id: str, command: calls.TelemetryCommand, name: str = name) -> bool:
            told.append(name)
            return True

        node = RemoteClients(tell)
        node.apply_changes({"p": [ClientInfo()]}, [])
        connected.add(node)
    assert connected.send_to_producer("orders", "p", calls.TelemetryCommand())
    assert told == ["the stranger's", "the producer's"]


class Nodes:
    """A master with other nodes, at which clients are connected. "owner" may end transactions in "orders"."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.clients = ConnectedClients(ClientStreams(10), lambda: 0.0, may_end=self.may_end)

    @staticmethod
    def may_end(account: str, topic: str) -> bool:
        return (account, topic) == ("owner", "orders")

    def add(self, name: str, clients: dict[str, list[ClientInfo]]) -> None:
        def tell(client_id: str, command: calls.TelemetryCommand) -> bool:
            self.told.append((name, client_id))
            return True

        node = RemoteClients(tell)
        sent = [client_to_pb(client_id, infos) for client_id, infos in clients.items()]
        frame = forward_pb2.FromNode.FromString(forward_pb2.FromNode(clients=sent).SerializeToString())
        node.apply_changes(clients_from_pb(frame.clients), [])
        self.clients.add(node)

    def ask(self) -> list[tuple[str, str]]:
        """Who is told, if the producer "gone" is to be asked."""
        self.told.clear()
        is_told = self.clients.send_to_producer("orders", "gone", COMMAND)
        assert is_told == bool(self.told)
        return list(self.told)


def stranger(topics: frozenset[str] = frozenset()) -> ClientInfo:
    return ClientInfo(topics=topics, account="stranger")


def test_a_stranger_under_a_gone_producers_id_is_not_taken_for_asked() -> None:
    nodes = Nodes()
    nodes.add("b", {"gone": [stranger()]})
    assert nodes.ask() == []
    nodes.add("c", {"other": [ClientInfo(topics=ORDERS, account="owner")]})
    assert nodes.ask() == [("c", "other")]


def test_topics_that_an_account_may_not_send_to_make_no_producer_of_it() -> None:
    """Its node has judged the settings by accounts that may have changed since."""
    nodes = Nodes()
    nodes.add("b", {"x": [stranger(ORDERS)]})
    assert nodes.ask() == []
    nodes.clients.sent("x", "orders")
    assert nodes.ask() == []


@pytest.mark.parametrize("strangers_place", [0, 1])
def test_a_producer_whose_id_a_stranger_has_as_well_is_asked(strangers_place: int) -> None:
    nodes = Nodes()
    infos = [ClientInfo(account="owner")]
    infos.insert(strangers_place, stranger())
    nodes.add("b", {"gone": infos})
    assert nodes.ask() == [("b", "gone")]


def test_the_clients_of_a_node_that_names_no_accounts_are_told_and_not_taken_for_asked() -> None:
    nodes = Nodes()
    nodes.add("old", {"gone": [ClientInfo(account=None)]})
    nodes.add("c", {"other": [ClientInfo(topics=ORDERS, account="owner")]})
    assert nodes.ask() == [("old", "gone"), ("c", "other")]
    without_accounts = ConnectedClients(ClientStreams(10), lambda: 0.0)
    node = RemoteClients(lambda client_id, command: True)
    node.apply_changes({"gone": [ClientInfo(account=None)]}, [])
    without_accounts.add(node)
    assert without_accounts.send_to_producer("orders", "gone", COMMAND)


def test_who_has_sent_lately_is_asked_and_nobody_later() -> None:
    now_s = [0.0]
    connected = ConnectedClients(ClientStreams(10), lambda: now_s[0])
    told: list[str] = []
    node = RemoteClients(lambda client_id, command: told.append(client_id) is None)
    node.apply_changes({"early": [ClientInfo()], "late": [ClientInfo()]}, [])
    connected.add(node)
    for client_id in ("early", "late"):
        now_s[0] += 100
        connected.sent(client_id, "orders")
    for at_s, asked in ((200, "late"), (350, "late"), (499, "late"), (501, None)):
        now_s[0] = at_s
        told.clear()
        assert connected.send_to_producer("orders", "gone", COMMAND) == (asked is not None)
        assert told == ([] if asked is None else [asked])


class CountedTopics(frozenset[str]):
    """That count how often somebody looks for one."""

    looks = 0

    def __contains__(self, topic: object) -> bool:
        CountedTopics.looks += 1
        return super().__contains__(topic)


def many(count: int, topic: str) -> dict[str, list[ClientInfo]]:
    return {f"{topic}-{number}": [ClientInfo(topics=CountedTopics({topic}))] for number in range(count)}


def test_a_question_looks_at_few_of_the_clients_of_other_nodes() -> None:
    """A hundred halves may be without their producer, and each looked at all clients of the cluster."""
    connected = ConnectedClients(ClientStreams(10), lambda: 0.0)
    told = Counter[str]()

    def tell(client_id: str, command: calls.TelemetryCommand) -> bool:
        told[client_id] += 1
        return client_id == "orders-2999"

    node = RemoteClients(tell)
    node.apply_changes({**many(3_000, "other"), **many(3_000, "orders")}, [])
    connected.add(node)
    CountedTopics.looks = 0
    assert not connected.send_to_producer("nothing", "gone", COMMAND)
    assert CountedTopics.looks == 0 and not told
    asked = 0
    while not connected.send_to_producer("orders", "gone", COMMAND):
        asked += 1
        assert CountedTopics.looks <= 300 * asked
    assert 0 < asked < 30, "each question tries others"
    assert set(told.values()) == {1} and len(told) == 3_000


def test_producers_of_other_nodes_come_and_go_with_what_their_nodes_say() -> None:
    nodes = Nodes()
    owner = ClientInfo(topics=ORDERS, account="owner")
    nodes.add("b", {"p1": [owner], "p2": [stranger(), owner], "p3": [owner]})
    assert [nodes.ask() for _ in range(4)] == [[("b", one)] for one in ("p1", "p2", "p3", "p1")]
    node = nodes.clients._nodes[0]
    node.apply_changes({"p2": [stranger()], "p4": [owner]}, ["p3", "p9"])
    assert [nodes.ask() for _ in range(3)] == [[("b", one)] for one in ("p1", "p4", "p1")]
    node.apply_changes({"p2": [owner]}, ["p1", "p4"])
    assert [nodes.ask() for _ in range(2)] == [[("b", "p2")]] * 2
    node.apply_changes({}, ["p2"])
    assert nodes.ask() == [] and not node.infos and not node._producers


def test_a_question_tries_few_of_the_producers_of_this_node() -> None:
    """They may all be full, and there may be ten thousand."""

    class Full:
        def __init__(self) -> None:
            self.tried = 0

        def queue_command(self, command: calls.TelemetryCommand) -> bool:
            self.tried += 1
            return self.tried > 1

        def renew(self) -> None: ...

    streams, all_of_them = ClientStreams(2_000), [Full() for _ in range(1_000)]
    for number, stream in enumerate(all_of_them):
        streams.add(f"p{number}", stream)
        streams.describe(f"p{number}", stream, ClientInfo(topics=ORDERS))
    questions = 0
    while not streams.send_to_any_producer("orders", COMMAND):
        questions += 1
        assert sum(stream.tried for stream in all_of_them) <= 300 * questions
    assert questions < 10 and all(stream.tried for stream in all_of_them)
