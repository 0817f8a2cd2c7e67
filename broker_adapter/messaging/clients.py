"""The clients whose telemetry streams end at this node, and what is told them over these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from broker_adapter.messaging.rejected import Code, Rejected
from broker_adapter.messaging.v2 import service_pb2 as calls


class Stream(Protocol):
    """The way to one client."""

    def tell(self, command: calls.TelemetryCommand) -> bool:
        """Whether there was room for it: a client that does not read is not waited for."""


class ClientStreams:
    """By client id; producers also by topic. On the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._streams: dict[str, list[Stream]] = {}
        self._topics_of: dict[str, frozenset[str]] = {}
        self._producers: dict[str, dict[str, None]] = defaultdict(dict)  # of a topic, in order of turns

    def __len__(self) -> int:
        """Open streams."""
        return self._count

    def add(self, client_id: str, stream: Stream) -> None:
        """Rejected (TOO_MANY_REQUESTS)."""
        if self._count >= self._most:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"{self._most} clients are connected to this node")
        self._count += 1
        self._streams.setdefault(client_id, []).append(stream)

    def remove(self, client_id: str, stream: Stream) -> None:
        streams = self._streams[client_id]
        streams.remove(stream)
        self._count -= 1
        if not streams:
            del self._streams[client_id]
            self.produces(client_id, ())

    def produces(self, client_id: str, topics: Iterable[str]) -> None:
        """A client says to which topics it sends."""
        now = frozenset(topics)
        before = self._topics_of.pop(client_id, frozenset())
        for topic in before - now:
            producers = self._producers[topic]
            producers.pop(client_id, None)
            if not producers:
                del self._producers[topic]
        for topic in now - before:
            self._producers[topic][client_id] = None
        if now:
            self._topics_of[client_id] = now

    def tell(self, client_id: str, command: calls.TelemetryCommand) -> bool:
        """Over the newest stream of a client that takes it."""
        return any(stream.tell(command) for stream in reversed(self._streams.get(client_id, [])))

    def tell_producer(self, topic: str, client_id: str, command: calls.TelemetryCommand) -> bool:
        """The producer with this id, or else one of the topic, in turns. False: none is connected here."""
        if self.tell(client_id, command):
            return True
        producers = self._producers.get(topic, {})
        for other in list(producers):
            if self.tell(other, command):
                producers[other] = producers.pop(other)  # the others first, next time
                return True
        return False
