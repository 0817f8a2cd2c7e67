"""All clients of the cluster that the master knows, and how it sends commands to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from broker_adapter.endpoints.v5.clients import ClientInfo, ClientStreams, in_turn
from broker_adapter.v2 import service_pb2 as calls

#: Time after a send in which a client counts as a producer of the topic, whatever its settings (seconds).
_SENT_LATELY_S = 300.0
_MAX_SENDERS, _MAX_TOPICS = 64, 4_096

#: Sends (client id, command) to a node. Returns False if the queue is full.
SendToNode = Callable[[str, calls.TelemetryCommand], bool]
#: Maps (account, topic) to whether the account may end transactions in the topic, and therefore receive
#: checks.
MayEnd = Callable[[str, str], bool]


class RemoteClients:
    """The clients of another node, while the stream of that node is open."""

    def __init__(self, send_command: SendToNode) -> None:
        self.send_command = send_command
        self.infos: dict[str, Sequence[ClientInfo]] = {}
        self._producers: dict[str, dict[str, None]] = {}  # ids by topic, in round-robin order

    def apply_changes(self, clients: Mapping[str, Sequence[ClientInfo]], gone: Sequence[str]) -> None:
        """Apply the changes that the node has reported.

        `clients`: by id, one description per account with streams under the id.
        """
        for client_id in gone:
            self._list(client_id, self.infos.pop(client_id, ()), ())
        for client_id, infos in clients.items():
            self._list(client_id, self.infos.get(client_id, ()), infos)
            self.infos[client_id] = infos

    def producers(self, topic: str) -> Iterator[tuple[str, Sequence[ClientInfo]]]:
        """Iterate over (client id, descriptions) of some producers of the topic, round-robin."""
        return ((client_id, self.infos[client_id]) for client_id in in_turn(self._producers.get(topic, {})))

    def _list(self, client_id: str, before: Sequence[ClientInfo], infos: Sequence[ClientInfo]) -> None:
        known, topics = _topics_of(before), _topics_of(infos)
        for topic in known - topics:
            producers = self._producers[topic]
            del producers[client_id]
            if not producers:
                del self._producers[topic]
        for topic in topics - known:
            self._producers.setdefault(topic, {})[client_id] = None


def _topics_of(infos: Sequence[ClientInfo]) -> frozenset[str]:
    return frozenset().union(*(info.topics for info in infos))


class RecentSenders:
    """The most recent senders to the most recently used topics."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._at: dict[str, dict[str, float]] = {}

    def sent(self, client_id: str, topic: str) -> None:
        senders = self._at.get(topic)
        if senders is None:
            if len(self._at) >= _MAX_TOPICS:
                del self._at[next(iter(self._at))]
            senders = self._at[topic] = {}
        senders.pop(client_id, None)
        senders[client_id] = self._now_s()
        if len(senders) > _MAX_SENDERS:
            del senders[next(iter(senders))]

    def of(self, topic: str) -> list[str]:
        """Return the recent senders of a topic, newest first."""
        since = self._now_s() - _SENT_LATELY_S
        return [client for client, at in reversed(self._at.get(topic, {}).items()) if at >= since]


class ConnectedClients:
    """All connected clients of the cluster.

    `local`: the clients of this node. Clients of another node are included while its stream is open.
    `may_end`: None if there is no access control.
    """

    def __init__(
        self, local: ClientStreams, now_s: Callable[[], float], may_end: MayEnd | None = None
    ) -> None:
        self._local = local
        self._may_end = may_end
        self._nodes: list[RemoteClients] = []
        self._senders = RecentSenders(now_s)
        self.sent = self._senders.sent

    def add(self, node: RemoteClients) -> None:
        self._nodes.append(node)

    def remove(self, node: RemoteClients) -> None:
        self._nodes.remove(node)

    def send_to_producer(self, topic: str, client_id: str, command: calls.TelemetryCommand) -> bool:
        """Send a command to the producer with this id, or to another producer of the topic.

        The other producers are those that name the topic in their settings, round-robin, and then those that
        have recently sent to it. Returns False if no such producer is connected.
        """
        return (
            self._send(topic, client_id, command)
            or self._local.send_to_any_producer(topic, command)
            or self._send_to_any_remote(topic, command)
            or any(self._send(topic, sender, command) for sender in self._senders.of(topic))
        )

    def _send(self, topic: str, client_id: str, command: calls.TelemetryCommand) -> bool:
        if self._local.send_command(client_id, command):
            return True
        # Try every node with this client id. Ids are not authenticated, so any of the clients may be the
        # producer.
        told = [self._send_to_node(node, topic, client_id, command) for node in self._nodes]
        return any(told)

    def _send_to_node(
        self, node: RemoteClients, topic: str, client_id: str, command: calls.TelemetryCommand
    ) -> bool:
        """Send a command to a client of another node. Return True if it reached a client that may receive it.

        Nodes drop commands that their client may not receive.
        """
        found = node.infos.get(client_id, ())
        if any(self._may_be_asked(info, topic) for info in found):
            return node.send_command(client_id, command)
        if any(info.account is None for info in found):
            node.send_command(
                client_id, command
            )  # the node has an older version, which does not report accounts
        return False

    def _may_be_asked(self, info: ClientInfo, topic: str) -> bool:
        return self._may_end is None or (info.account is not None and self._may_end(info.account, topic))

    def _send_to_any_remote(self, topic: str, command: calls.TelemetryCommand) -> bool:
        for node in self._nodes:
            for client_id, infos in node.producers(topic):
                may_be = any(topic in info.topics and self._may_be_asked(info, topic) for info in infos)
                if may_be and node.send_command(client_id, command):
                    return True
        return False
