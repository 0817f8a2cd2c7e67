"""The clients with telemetry streams to this node, and the commands for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.loops.turns import wake_queue
from dledger.infra.quotas import Quota

K = TypeVar("K")

#: Maximum number of producers of a topic to try for a transaction check. There may be ten thousand producers
#: and a hundred checks.
_MOST_TRIED = 256
#: Maximum bytes of the settings of all clients that are connected to a node.
MAX_SETTINGS_BYTES = 64 << 20
#: Maximum bytes of commands that are queued for these clients. Some commands contain a message.
MAX_WAITING_BYTES = 64 << 20


class Stream(Protocol):
    """The telemetry stream of one client."""

    def queue_command(self, command: calls.TelemetryCommand) -> bool:
        """Queue a command. Return False if it exceeds the limit of queued bytes, or if the client may not
        receive it.

        Does not wait for slow clients.
        """

    def renew(self) -> None:
        """Send the settings again if they have changed."""


class ClientInfo(NamedTuple):
    """The description of a client on one stream.

    `topics`: the topics to which it publishes. `account`: its authenticated account, "" if there is no access
    control, or None if its node does not report the account.
    """

    client_type: pb.ClientType = pb.ClientType.CLIENT_TYPE_UNSPECIFIED
    group: str = ""
    topics: frozenset[str] = frozenset()
    account: str | None = ""


def in_turn(producers: dict[K, None]) -> Iterator[K]:
    """Yield some producers and move them to the end, so that the next call yields other producers first."""
    for one in list(islice(producers, _MOST_TRIED)):
        producers[one] = producers.pop(one)
        yield one


class ClientStreams:
    """Streams by client id, and producers by topic. Runs on the event loop.

    Client ids are not authenticated, so the description on a stream does not apply to other streams with the
    same id.

    `on_change` is called with the id of a client that has connected, changed its description, or left.
    """

    def __init__(
        self,
        most: int,
        settings_bytes: int = MAX_SETTINGS_BYTES,
        commands_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        #: Quotas by client address.
        self.settings_room = Quota(settings_bytes)
        self.commands_room = Quota(commands_bytes)
        self.on_change: Callable[[str], None] = lambda client_id: None
        self._places = Quota(most, "clients are connected to this node", "connect some to other nodes")
        self._streams: dict[str, dict[Stream, ClientInfo]] = {}  # the newest stream of a client is last
        self._producers: dict[str, dict[Stream, None]] = defaultdict(dict)  # by topic, in round-robin order

    def __len__(self) -> int:
        """Return the number of open streams."""
        return self._places.used

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of connected clients."""
        return iter(self._streams)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._streams

    def infos(self, client_id: str) -> list[ClientInfo]:
        """Return the descriptions of a connected client.

        There is one description per account that has streams under the id, with the topics of all these
        streams.
        """
        found: dict[str | None, ClientInfo] = {}
        for info in self._streams.get(client_id, {}).values():
            before = found.get(info.account, info)
            found[info.account] = info._replace(topics=info.topics | before.topics)
        return list(found.values())

    def groups(self) -> set[str]:
        """Return the groups of the connected clients."""
        return {info.group for streams in self._streams.values() for info in streams.values() if info.group}

    def by_type(self) -> Counter[str]:
        """Return the number of connected clients by type."""
        names = pb.ClientType.DESCRIPTOR.values_by_number
        newest = [next(reversed(streams.values())) for streams in self._streams.values()]
        types = [names.get(info.client_type, names[0]) for info in newest]
        return Counter(found.name for found in types)

    def add(self, client_id: str, stream: Stream, address: str = "", account: str = "") -> None:
        """Register a stream. Raises Rejected (TOO_MANY_REQUESTS) if there are too many clients."""
        if (refusal := self._places.refusal(address)) is not None:
            raise Rejected(Code.TOO_MANY_REQUESTS, refusal)
        self._places.acquire(address)
        self._streams.setdefault(client_id, {})[stream] = ClientInfo(account=account)
        self.on_change(client_id)

    def remove(self, client_id: str, stream: Stream, address: str = "") -> None:
        self._places.release(address)
        streams = self._streams[client_id]
        self._list(stream, streams.pop(stream).topics, frozenset())
        if not streams:
            del self._streams[client_id]
        self.on_change(client_id)

    def describe(self, client_id: str, stream: Stream, info: ClientInfo) -> None:
        """Update a client's description on one of its streams."""
        streams = self._streams[client_id]
        if info != (before := streams[stream]):
            streams[stream] = info
            self._list(stream, before.topics, info.topics)
            self.on_change(client_id)

    def send_command(self, client_id: str, command: calls.TelemetryCommand) -> bool:
        """Queue a command on the client's newest stream that accepts it."""
        return any(stream.queue_command(command) for stream in reversed(self._streams.get(client_id, {})))

    def send_to_any_producer(self, topic: str, command: calls.TelemetryCommand) -> bool:
        """Queue a command for one of the producers of a topic, round-robin.

        Returns False if no producer is connected to this node, or if none of those tried accepts the command.
        """
        return any(other.queue_command(command) for other in in_turn(self._producers.get(topic, {})))

    def group_changed(self, group: str) -> None:
        """Send new settings to the group's clients if they have changed."""
        found = [
            stream
            for streams in self._streams.values()
            for stream, info in streams.items()
            if info.group == group
        ]
        wake_queue().each("settings", found, _renew)

    def _list(self, stream: Stream, before: frozenset[str], topics: frozenset[str]) -> None:
        """Move a stream from the producers of the previous topics to the producers of the new topics."""
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
