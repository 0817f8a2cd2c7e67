"""Who watches routes, and what each has not been told yet."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

from broker_adapter.errors import NameServerBusy, Status
from dledger.platform import SharedPlaces, wake_queue


class Watcher:
    """One client: a set of topics that it has to be told about. Their newest route is read when it is sent.

    So whatever happens while the client is slow, it costs one name per topic, and is told once.
    """

    def __init__(self, topics: Collection[str] | None, known: Iterable[str]) -> None:
        """`topics` None: all, those that will come too. `known`: what there is now."""
        self._topics = None if topics is None else frozenset(topics)
        # A dict, for its order: first come, first told.
        self._pending: dict[str, None] = dict.fromkeys(known if topics is None else topics)
        self._changed = asyncio.Event()

    def mark(self, topics: Collection[str]) -> None:
        """The routes of these have changed."""
        concerned = topics if self._topics is None else self._topics.intersection(topics)
        if concerned:
            self._pending.update(dict.fromkeys(concerned))
            self._changed.set()

    @property
    def is_behind(self) -> bool:
        return bool(self._pending)

    async def wait(self) -> None:
        """Until there is something to tell."""
        while not self._pending:
            self._changed.clear()
            await self._changed.wait()

    def take(self) -> str | None:
        """A topic to tell about; None: the client knows everything."""
        topic = next(iter(self._pending), None)
        if topic is not None:
            del self._pending[topic]
        return topic


class RouteNotices:
    """One connection that asked for routes and wants to know of their next change: it is told of a topic
    once, and again after it has asked again. So it never has more to read than it has asked questions.
    """

    def __init__(self, most: int, tell: Callable[[Collection[str]], None]) -> None:
        """`most` topics at a time; `tell` sends a notice."""
        self._topics: set[str] = set()
        self._most = most
        self._tell = tell

    def watch(self, topic: str) -> bool:
        """False: too many are watched."""
        if topic not in self._topics and len(self._topics) >= self._most:
            return False
        self._topics.add(sys.intern(topic))  # one text for all who watch it
        return True

    def mark(self, topics: Collection[str]) -> None:
        """The routes of these have changed."""
        fewer, more = sorted((self._topics, topics), key=len)
        if concerned := [topic for topic in fewer if topic in more]:
            self._topics.difference_update(concerned)
            self._tell(concerned)


class Marked(Protocol):
    """Whoever is told of changes."""

    def mark(self, topics: Collection[str]) -> None:
        """The routes of these have changed."""


class Watchers:
    """All of them, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._watchers: dict[Marked, str] = {}  # and whose share its place is
        self._places = SharedPlaces(
            limit, "watchers of routes are open", "watch over fewer streams, or raise limits.max_watchers"
        )
        self._changed: dict[str, None] = {}  # topics that watchers are to be told of next
        self._is_marking = False

    def __len__(self) -> int:
        return len(self._watchers)

    def __iter__(self) -> Iterator[Marked]:
        return iter(self._watchers)

    def add(self, topics: Collection[str] | None, known: Iterable[str], client: str = "") -> Watcher:
        """NameServerBusy (NAMESRV_LIMIT). `client`: the address whose share of the places it takes."""
        watcher = Watcher(topics, known)
        self.admit(watcher, client)
        return watcher

    def admit(self, watcher: Marked, client: str = "") -> None:
        """As `add`, of one that is there."""
        if (refusal := self._places.refusal(client)) is not None:
            raise NameServerBusy(Status.NAMESRV_LIMIT, refusal)
        self._places.take(client)
        self._watchers[watcher] = client

    def remove(self, watcher: Marked) -> None:
        if (client := self._watchers.pop(watcher, None)) is not None:
            self._places.give_back(client)

    def mark(self, topics: Collection[str]) -> None:
        """Watchers are told a few in each turn of the loop: all of them may watch all topics."""
        self._changed.update(dict.fromkeys(topics))
        if not self._is_marking:
            self._mark()

    def _mark(self) -> None:
        topics, self._changed = self._changed, {}
        self._is_marking = True

        def mark(watcher: Marked | None) -> bool:
            if watcher is not None:
                watcher.mark(topics)
            elif self._changed:
                self._mark()
            else:
                self._is_marking = False
            return True

        wake_queue().each("routes", [*self._watchers, None], mark)
