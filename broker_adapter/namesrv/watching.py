"""Connections that watch routes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator

from dledger.infra.loops.turns import wake_queue
from dledger.infra.quotas import Quota


class RouteNotices:
    """Route watch of one connection.

    After a route changes, a connection that requested the route receives one notice. The next request for the
    topic renews the watch. There are therefore never more pending notices than requests.
    """

    def __init__(self, limit: int, notify: Callable[[Collection[str]], None]) -> None:
        """`limit`: maximum number of topics. `notify` sends a notice."""
        self._topics: set[str] = set()
        self._limit = limit
        self._notify = notify

    def watch(self, topic: str) -> bool:
        """Watch a topic. Return False if too many topics are watched."""
        if topic not in self._topics and len(self._topics) >= self._limit:
            return False
        self._topics.add(sys.intern(topic))  # one string object for all watchers
        return True

    def mark(self, topics: Collection[str]) -> None:
        """Send a notice of those of the changed topics that are watched, and end their watches."""
        smaller, larger = sorted((self._topics, topics), key=len)
        if changed := [topic for topic in smaller if topic in larger]:
            self._topics.difference_update(changed)
            self._notify(changed)


class Watchers:
    """The watchers of all connections, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._watchers: dict[RouteNotices, str] = {}  # the address whose quota a watcher uses, by watcher
        self._places = Quota(
            limit, "connections watch routes", "use fewer watching connections, or raise limits.max_watchers"
        )
        self._changed: dict[str, None] = {}  # topics of the next notices
        self._is_marking = False

    def __len__(self) -> int:
        return len(self._watchers)

    def __iter__(self) -> Iterator[RouteNotices]:
        return iter(self._watchers)

    def add(self, watcher: RouteNotices, client: str = "") -> bool:
        """Add a watcher.

        Return False if there are too many. `client`: the address whose quota the watcher uses.
        """
        if self._places.refusal(client) is not None:
            return False
        self._places.acquire(client)
        self._watchers[watcher] = client
        return True

    def remove(self, watcher: RouteNotices) -> None:
        if (client := self._watchers.pop(watcher, None)) is not None:
            self._places.release(client)

    def mark(self, topics: Collection[str]) -> None:
        """Notify the watchers of these topics.

        Only a few are notified per step of the event loop, because each may watch all topics.
        """
        self._changed.update(dict.fromkeys(topics))
        if not self._is_marking:
            self._mark()

    def _mark(self) -> None:
        topics, self._changed = self._changed, {}
        self._is_marking = True

        def mark(watcher: RouteNotices | None) -> bool:
            if watcher is not None:
                watcher.mark(topics)
            elif self._changed:
                self._mark()
            else:
                self._is_marking = False
            return True

        wake_queue().each("routes", [*self._watchers, None], mark)
