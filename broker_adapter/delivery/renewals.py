"""What clients hold: renewed as long as they are heard of, let go of when they went. On the master only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from broker_adapter.delivery.commands import Change, ChangeKind, QueueKey
from broker_adapter.delivery.committer import Committer, Done, Request
from broker_adapter.delivery.queue_state import Held
from broker_adapter.delivery.state import DeliveryState
from broker_adapter.delivery.views import GroupTopic, Views
from broker_adapter.errors import BrokerError
from broker_adapter.settings import DeliverySettings

_log = structlog.get_logger(part="delivery")

#: Of one request.
_MOST_CHANGES = 1_000


class Renewals:
    """A new master takes every client for heard of when it begins: each has as long as ever to speak up."""

    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        views: Views,
        *,
        now_ms: Callable[[], int],
        settings: DeliverySettings,
    ) -> None:
        """`now_ms` is cluster time."""
        self._state = state
        self._committer = committer
        self._views = views
        self._now_ms = now_ms
        self._settings = settings
        self._heard: dict[str, int] = {}
        self._since_ms = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._since_ms = self._now_ms()
        self._arm()

    def stop(self) -> None:
        self._heard.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def heard_of(self, client_id: str) -> None:
        self._heard[client_id] = self._now_ms()

    def let_go(self, client_id: str, group: str) -> Sequence[asyncio.Future[Done]]:
        """What a client holds (of a group, or "") becomes visible soon. BrokerError."""
        self._heard[client_id] = self._now_ms() - self._settings.heard_ms
        soon = self._now_ms() + self._settings.release_ms
        with self._state.lock:
            held = self._state.held_by(client_id)
        return self._change(
            [one for one in held if group in ("", one[0].group) and one[2].until_ms > soon],
            self._settings.release_ms,
            ChangeKind.RELEASE,
        )

    # -- inside -------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        delay = self._settings.invisible_ms / 8 / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self.renew)

    def renew(self) -> None:
        """What is less than half a period from its end. Called several times in that."""
        self._arm()
        now_ms = self._now_ms()
        silent_ms = now_ms - self._settings.heard_ms
        if self._since_ms <= silent_ms:  # until then who is not known is taken for heard of
            self._heard = {client: at for client, at in self._heard.items() if at > silent_ms - 1}
        due_ms = now_ms + self._settings.invisible_ms // 2
        oldest_ms = now_ms - self._settings.max_renewed_ms
        found: list[tuple[QueueKey, int, Held]] = []
        with self._state.lock:
            for client in self._state.owners():
                if self._heard.get(client, self._since_ms) > silent_ms:
                    held = self._state.held_by(client)
                    found += [
                        one
                        for one in held
                        if one[2].renews and now_ms < one[2].until_ms < due_ms and one[2].given_ms > oldest_ms
                    ]
        try:
            self._change(found, self._settings.invisible_ms, ChangeKind.RENEW)
        except BrokerError as error:
            _log.warning("what clients hold could not be renewed", reason=str(error))

    def _change(
        self, held: list[tuple[QueueKey, int, Held]], invisible_ms: int, kind: ChangeKind
    ) -> list[asyncio.Future[Done]]:
        done = []
        for at in range(0, len(held), _MOST_CHANGES):
            part = held[at : at + _MOST_CHANGES]
            elements = [Change(key, offset, one.pop, invisible_ms, kind) for key, offset, one in part]
            whose = dict.fromkeys(GroupTopic(key.group, key.topic) for key, _, _ in part)
            request = Request(elements=elements, release=partial(self._wake, whose))
            done.append(self._committer.submit(request))
        return done

    def _wake(self, whose: Iterable[GroupTopic]) -> None:
        """They wait for another time now."""
        for who in whose:
            self._views.wake_one(who)
