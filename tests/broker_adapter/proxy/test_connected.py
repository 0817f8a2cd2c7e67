"""Which of the clients of the cluster is told."""

from __future__ import annotations

from broker_adapter.proxy.clients import ClientInfo, ClientStreams
from broker_adapter.proxy.connected import ConnectedClients, RemoteClients
from broker_adapter.proxy.v2 import service_pb2 as calls


def test_a_strangers_stream_with_the_producers_id_keeps_the_question_from_nobody() -> None:
    """The node of the stranger's stream takes the command and drops it, as the account may not see it."""
    told = list[str]()
    connected = ConnectedClients(ClientStreams(10), now_s=lambda: 0.0)
    for name in ("the stranger's", "the producer's"):

        def tell(client_id: str, command: calls.TelemetryCommand, name: str = name) -> bool:
            told.append(name)
            return True

        node = RemoteClients(tell)
        node.said({"p": ClientInfo()}, [])
        connected.add(node)
    assert connected.tell_producer("orders", "p", calls.TelemetryCommand())
    assert told == ["the stranger's", "the producer's"]
