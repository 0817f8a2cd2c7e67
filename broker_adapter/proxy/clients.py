"""The clients whose telemetry streams end at this node, and what is told them over these."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from broker_adapter.proxy.messages.rejected import Code, Rejected
from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls
from broker_adapter.shares import Shares, fits
from dledger import wake_queue

#: Of settings of all clients that are connected to a node, as they came.
MAX_SETTINGS_BYTES = 64 << 20
#: Of commands that wait until these clients read them; some have a message in them.
MAX_WAITING_BYTES = 64 << 20


class Stream(Protocol):
    """The way to one client."""

    def tell(self, command: calls.TelemetryCommand) -> bool:
        """Whether there was room for it, and the client may hear it: one that does not read is not waited
        for."""

    def renew(self) -> None:
        """Tell the client its settings, if what they depend on has changed them."""


class ClientInfo(NamedTuple):
    """What a client says of itself. `topics`: to which it sends."""

    client_type: pb.ClientType = pb.ClientType.CLIENT_TYPE_UNSPECIFIED
    group: str = ""
    topics: frozenset[str] = frozenset()


class ClientStreams:
    """By client id; producers also by topic. On the event loop.

    `on_change` is called with the id of a client that has come, said something else of itself, or gone.
    """

    def __init__(
        self,
        most: int,
        settings_bytes: int = MAX_SETTINGS_BYTES,
        commands_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        #: By address of the client.
        self.settings_room = Shares(settings_bytes)
        self.commands_room = Shares(commands_bytes)
        self.on_change: Callable[[str], None] = lambda client_id: None
        self._most = most
        self._count = 0
        self._of_address: Counter[str] = Counter()
        self._streams: dict[str, list[Stream]] = {}
        self._infos: dict[str, ClientInfo] = {}
        self._producers: dict[str, dict[str, None]] = defaultdict(dict)  # of a topic, in order of turns

    def __len__(self) -> int:
        """Open streams."""
        return self._count

    def __iter__(self) -> Iterator[str]:
        """Ids of connected clients."""
        return iter(self._streams)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._streams

    def info(self, client_id: str) -> ClientInfo:
        """Of a connected client."""
        return self._infos.get(client_id, ClientInfo())

    def by_type(self) -> Counter[str]:
        """How many clients of each type are connected."""
        names = pb.ClientType.DESCRIPTOR.values_by_number
        types = [names.get(self.info(client_id).client_type, names[0]) for client_id in self._streams]
        return Counter(found.name for found in types)

    def add(self, client_id: str, stream: Stream, address: str = "") -> None:
        """Rejected (TOO_MANY_REQUESTS), also if its address has all that it may have: as many as are left."""
        if self._count >= self._most:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"{self._most} clients are connected to this node")
        own = self._of_address[address]
        if address and own and not fits(1, own, self._count, self._most):
            raise Rejected(Code.TOO_MANY_REQUESTS, f"{own} clients of {address} are connected to this node")
        self._of_address[address] += 1
        self._count += 1
        self._streams.setdefault(client_id, []).append(stream)
        self.on_change(client_id)

    def remove(self, client_id: str, stream: Stream, address: str = "") -> None:
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        streams = self._streams[client_id]
        streams.remove(stream)
        self._count -= 1
        if not streams:
            del self._streams[client_id]
            self._take(client_id, ClientInfo())
            self.on_change(client_id)

    def describe(self, client_id: str, info: ClientInfo) -> None:
        """What a connected client says of itself."""
        if info != self.info(client_id):
            self._take(client_id, info)
            self.on_change(client_id)

    def tell(self, client_id: str, command: calls.TelemetryCommand) -> bool:
        """Over the newest stream of a client that takes it."""
        return any(stream.tell(command) for stream in reversed(self._streams.get(client_id, [])))

    def tell_any(self, topic: str, command: calls.TelemetryCommand) -> bool:
        """One of the topic's producers, in turns. False: none is connected here."""
        producers = self._producers.get(topic, {})
        for other in list(producers):
            if self.tell(other, command):
                producers[other] = producers.pop(other)  # the others first, next time
                return True
        return False

    def group_changed(self, group: str) -> None:
        """Its settings are those of its consumers."""
        found = [
            stream
            for client_id, info in self._infos.items()
            if info.group == group
            for stream in self._streams.get(client_id, ())
        ]
        wake_queue().each("settings", found, _renew)

    def _take(self, client_id: str, info: ClientInfo) -> None:
        before = self._infos.pop(client_id, ClientInfo()).topics
        for topic in before - info.topics:
            producers = self._producers[topic]
            producers.pop(client_id, None)
            if not producers:
                del self._producers[topic]
        for topic in info.topics - before:
            self._producers[topic][client_id] = None
        if info != ClientInfo():
            self._infos[client_id] = info


def _renew(stream: Stream) -> bool:
    stream.renew()
    return True
