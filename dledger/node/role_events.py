"""What a program is told of the role of its node: every change, in order, on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from dledger.core.values import Role
from dledger.logs import get_logger
from dledger.replica.shell import RoleNotice

_log = get_logger("node")


class RoleEvent(NamedTuple):
    """Role, term or known leader of a node have changed. `role_epoch` grows with every change of role."""

    role: Role
    term: int
    role_epoch: int
    leader_id: str | None
    barrier_index: int  # LEADER: of the no-op of this leadership, before which all is older; otherwise -1


RoleListener: TypeAlias = Callable[[RoleEvent], None]


class RoleEvents:
    """Listeners are called in a turn of the loop of their own, so that they find the replica whole and may
    call into it; the events queue meanwhile, none is left out."""

    def __init__(self) -> None:
        self._current: RoleEvent | None = None  # what listeners were told last
        self._queue: deque[RoleEvent] = deque()
        self._listeners: list[RoleListener] = []

    def listen(self, listener: RoleListener) -> None:
        """It is called at once if anything was told before."""
        self._listeners.append(listener)
        if self._current is not None:
            self._tell(listener, self._current)

    def announce(self, notice: RoleNotice) -> None:
        """On the loop."""
        event = RoleEvent(notice.role, notice.term, notice.role_epoch, notice.leader_id, notice.barrier_index)
        self._queue.append(event)
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        event = self._current = self._queue.popleft()
        # One that is added meanwhile has been told of this event already.
        for listener in list(self._listeners):
            self._tell(listener, event)

    def _tell(self, listener: RoleListener, event: RoleEvent) -> None:
        try:
            listener(event)
        except Exception as error:
            _log.error("a listener to changes of role failed", exc_info=error, role=event.role.value)
