"""All clients of the cluster, as the master knows them, and the way to each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from broker_adapter.proxy.clients import ClientInfo, ClientStreams, in_turn
from broker_adapter.proxy.v2 import service_pb2 as calls

#: A client that has sent to a topic counts so long as a producer of it, whatever its settings say (seconds).
_SENT_LATELY_S = 300.0
_MAX_SENDERS, _MAX_TOPICS = 64, 4_096

#: (client id, command) on its way to a node. False: there is no room for it.
TellNode = Callable[[str, calls.TelemetryCommand], bool]
#: (account, topic) -> whether the account may end transactions there, and so be asked about them.
MayEnd = Callable[[str, str], bool]


class RemoteClients:
    """Those of one other node, as long as its stream to this one lasts."""

    def __init__(self, tell: TellNode) -> None:
        self.tell = tell
        self.infos: dict[str, Sequence[ClientInfo]] = {}
        self._producers: dict[str, dict[str, None]] = {}  # ids by topic, in order of turns

    def said(self, clients: Mapping[str, Sequence[ClientInfo]], gone: Sequence[str]) -> None:
        """`clients`: by id, what each account says that has streams under it."""
        for client_id in gone:
            self._list(client_id, self.infos.pop(client_id, ()), ())
        for client_id, infos in clients.items():
            self._list(client_id, self.infos.get(client_id, ()), infos)
            self.infos[client_id] = infos

    def producers(self, topic: str) -> Iterator[tuple[str, Sequence[ClientInfo]]]:
        """Some that send to the topic, in turns: ids, and what each says."""
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
    """Who has sent to a topic lately: the newest of them, of the newest topics."""

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
        """The last one first."""
        since = self._now_s() - _SENT_LATELY_S
        return [client for client, at in reversed(self._at.get(topic, {}).items()) if at >= since]


class ConnectedClients:
    """`local`: of this node. Other nodes are added while their streams last. `may_end` None: there are no
    accounts."""

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

    def tell_producer(self, topic: str, client_id: str, command: calls.TelemetryCommand) -> bool:
        """The producer with this id, or else one of the topic: by its own word, in turns, or because it has
        sent to it lately. False: none is connected anywhere."""
        return (
            self._tell(topic, client_id, command)
            or self._local.tell_any(topic, command)
            or self._tell_any_remote(topic, command)
            or any(self._tell(topic, sender, command) for sender in self._senders.of(topic))
        )

    def _tell(self, topic: str, client_id: str, command: calls.TelemetryCommand) -> bool:
        if self._local.tell(client_id, command):
            return True
        # Every node that has it: a client id proves nothing, and each of them may be the producer's.
        told = [self._tell_at(node, topic, client_id, command) for node in self._nodes]
        return any(told)

    def _tell_at(
        self, node: RemoteClients, topic: str, client_id: str, command: calls.TelemetryCommand
    ) -> bool:
        """Whether one who may be asked was told: a node drops what its client may not see."""
        found = node.infos.get(client_id, ())
        if any(self._may_be_asked(info, topic) for info in found):
            return node.tell(client_id, command)
        if any(info.account is None for info in found):
            node.tell(client_id, command)  # an older node says not whose stream it is
        return False

    def _may_be_asked(self, info: ClientInfo, topic: str) -> bool:
        return self._may_end is None or (info.account is not None and self._may_end(info.account, topic))

    def _tell_any_remote(self, topic: str, command: calls.TelemetryCommand) -> bool:
        for node in self._nodes:
            for client_id, infos in node.producers(topic):
                may_be = any(topic in info.topics and self._may_be_asked(info, topic) for info in infos)
                if may_be and node.tell(client_id, command):
                    return True
        return False
