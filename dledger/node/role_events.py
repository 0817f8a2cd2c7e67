"""Reports the role changes of a node to its program: every change, in order, on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from dledger.core.values import Role
from dledger.infra.logs import get_logger
from dledger.replica.shell import RoleNotice

_log = get_logger("node")


class RoleEvent(NamedTuple):
    """The role, the term or the known leader of a node changed. `role_epoch` grows with every change of
    role.
    """

    role: Role
    term: int
    role_epoch: int
    leader_id: str | None
    barrier_index: int  # LEADER: index of the no-op that starts this leadership; otherwise -1


RoleListener: TypeAlias = Callable[[RoleEvent], None]


class RoleEvents:
    """Delivers role changes in a separate callback of the loop, so that listeners find the replica
    consistent and may call it. Events queue meanwhile, without loss.
    """

    def __init__(self) -> None:
        self._current: RoleEvent | None = None  # last event delivered
        self._queue: deque[RoleEvent] = deque()
        self._listeners: list[RoleListener] = []

    def listen(self, listener: RoleListener) -> None:
        """Add a listener. It is called immediately with the last event, if there was one."""
        self._listeners.append(listener)
        if self._current is not None:
            self._notify(listener, self._current)

    def announce(self, notice: RoleNotice) -> None:
        """Queue an event. Call on the loop."""
        event = RoleEvent(notice.role, notice.term, notice.role_epoch, notice.leader_id, notice.barrier_index)
        self._queue.append(event)
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        event = self._current = self._queue.popleft()
        # A listener added meanwhile has already received this event.
        for listener in list(self._listeners):
            self._notify(listener, event)

    def _notify(self, listener: RoleListener, event: RoleEvent) -> None:
        try:
            listener(event)
        except Exception as error:
            _log.error("a role listener failed", exc_info=error, role=event.role.value)
