"""The clients whose telemetry streams end at this node, and what is told them over these."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from broker_adapter.proxy.messages.rejected import Code, Rejected
from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls
from broker_adapter.shares import Shares, fits
from dledger.platform import wake_queue

K = TypeVar("K")

#: Producers of a topic that are tried for one question: there may be ten thousand, and a hundred questions.
_MOST_TRIED = 256
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
    """What a client says of itself over one stream. `topics`: to which it sends; `account`: who it has proved
    to be, "" without access control, None if its node does not say."""

    client_type: pb.ClientType = pb.ClientType.CLIENT_TYPE_UNSPECIFIED
    group: str = ""
    topics: frozenset[str] = frozenset()
    account: str | None = ""


def in_turn(producers: dict[K, None]) -> Iterator[K]:
    """Some of them, the others first next time."""
    for one in list(islice(producers, _MOST_TRIED)):
        producers[one] = producers.pop(one)
        yield one


class ClientStreams:
    """By client id; producers also by topic. On the event loop.

    A client id proves nothing: what is said over one stream says nothing of another one with the same id.

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
        self._streams: dict[str, dict[Stream, ClientInfo]] = {}  # the newest stream of a client is the last
        self._producers: dict[str, dict[Stream, None]] = defaultdict(dict)  # of a topic, in order of turns

    def __len__(self) -> int:
        """Open streams."""
        return self._count

    def __iter__(self) -> Iterator[str]:
        """Ids of connected clients."""
        return iter(self._streams)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._streams

    def infos(self, client_id: str) -> list[ClientInfo]:
        """Of a connected client: one for each account that has streams under its id, with the topics of
        all."""
        found: dict[str | None, ClientInfo] = {}
        for info in self._streams.get(client_id, {}).values():
            before = found.get(info.account, info)
            found[info.account] = info._replace(topics=info.topics | before.topics)
        return list(found.values())

    def by_type(self) -> Counter[str]:
        """How many clients of each type are connected."""
        names = pb.ClientType.DESCRIPTOR.values_by_number
        newest = [next(reversed(streams.values())) for streams in self._streams.values()]
        types = [names.get(info.client_type, names[0]) for info in newest]
        return Counter(found.name for found in types)

    def add(self, client_id: str, stream: Stream, address: str = "", account: str = "") -> None:
        """Rejected (TOO_MANY_REQUESTS), also if its address has all that it may have: as many as are left."""
        if self._count >= self._most:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"{self._most} clients are connected to this node")
        own = self._of_address[address]
        if address and own and not fits(1, own, self._count, self._most):
            raise Rejected(Code.TOO_MANY_REQUESTS, f"{own} clients of {address} are connected to this node")
        self._of_address[address] += 1
        self._count += 1
        self._streams.setdefault(client_id, {})[stream] = ClientInfo(account=account)
        self.on_change(client_id)

    def remove(self, client_id: str, stream: Stream, address: str = "") -> None:
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        streams = self._streams[client_id]
        self._list(stream, streams.pop(stream).topics, frozenset())
        self._count -= 1
        if not streams:
            del self._streams[client_id]
        self.on_change(client_id)

    def describe(self, client_id: str, stream: Stream, info: ClientInfo) -> None:
        """What a connected client says of itself over one of its streams."""
        streams = self._streams[client_id]
        if info != (before := streams[stream]):
            streams[stream] = info
            self._list(stream, before.topics, info.topics)
            self.on_change(client_id)

    def tell(self, client_id: str, command: calls.TelemetryCommand) -> bool:
        """Over the newest stream of a client that takes it."""
        return any(stream.tell(command) for stream in reversed(self._streams.get(client_id, {})))

    def tell_any(self, topic: str, command: calls.TelemetryCommand) -> bool:
        """One of the topic's producers, in turns. False: none is connected here, or none of those that were
        tried takes it."""
        return any(other.tell(command) for other in in_turn(self._producers.get(topic, {})))

    def group_changed(self, group: str) -> None:
        """Its settings are those of its consumers."""
        found = [
            stream
            for streams in self._streams.values()
            for stream, info in streams.items()
            if info.group == group
        ]
        wake_queue().each("settings", found, _renew)

    def _list(self, stream: Stream, before: frozenset[str], topics: frozenset[str]) -> None:
        """Among the producers of `topics`, and not of those before."""
        for topic in before - topics:
            producers = self._producers[topic]
            del producers[stream]
            if not producers:
                del self._producers[topic]
        for topic in topics - before:
            self._producers[topic][stream] = None


def _renew(stream: Stream) -> bool:
    stream.renew()
    return True
