"""Limits the calls whose responses contain parts of the log or of a state image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc.aio

from dledger.errors import Code, Overloaded
from dledger.infra.quotas import Quota

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class Copies:
    """Counts such calls until they end. gRPC keeps a response until its receiver has read it, in up to four
    times its size, and a receiver that does not read can open many calls. Senders share the limit."""

    def __init__(self, limit: int, what: str, on_hit: Callable[[], None]) -> None:
        """`what`: completes the text of refusals, such as "backups are under way". `on_hit` is called for
        each refused call."""
        self._calls = Quota(limit, what)
        self._on_hit = on_hit

    def count(self, sender: str, context: _Context) -> None:
        """Count a call until it ends. Raises Overloaded if the sender may not have another one."""
        if (refusal := self._calls.refusal(sender)) is not None:
            self._on_hit()
            raise Overloaded(refusal, code=Code.TOO_MANY_CONNECTIONS)
        self._calls.acquire(sender)
        context.add_done_callback(
            lambda _: self._calls.release(sender)  # type: ignore[arg-type]  # the stub has a class
        )
