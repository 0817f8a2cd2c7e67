"""The context of a call: properties of the caller that affect the response.

A node that forwards a call also forwards its context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

#: This project's name for Node.js clients, which report their language as HTTP.
NODE_JS = "NODE_JS"
PYTHON = "PYTHON"
JAVA = "JAVA"
GO = "GO"

#: Names of the ports: the port of the node itself, and the ports only for clients.
NODE_PORT, PLAIN_PORT, TLS_PORT = "", "plain", "tls"

#: The part of a deadline that is reserved for the response, and the minimum reserve (seconds).
WAY_BACK_S: Final = 0.2
LATE_S: Final = 0.05


class ResponseDelivery:
    """Reports whether a call's responses reached its caller.

    The component that writes the responses calls `settle` once. Handlers that depend on the delivery register
    a callback with `then`.
    """

    def __init__(self) -> None:
        self._is_passed_on: bool | None = None
        self._callbacks: list[Callable[[bool], None]] = []

    def then(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` with the result as soon as it is known."""
        if self._is_passed_on is None:
            self._callbacks.append(callback)
        else:
            callback(self._is_passed_on)

    def settle(self, is_passed_on: bool) -> None:
        """Record the result and call the callbacks. Further calls have no effect."""
        if self._is_passed_on is None:
            self._is_passed_on = is_passed_on
            for callback in self._callbacks:
                callback(is_passed_on)


class CallContext(NamedTuple):
    """The context of one call.

    `remote`: host:port; "" if the caller has no IP address. `timeout_s`: time until the caller's deadline, or
    None if it has none. `account`: the authenticated account. `listener`: the port on which the call arrived.
    `is_repeated`: an earlier attempt reached a master that did not respond. The call may have crashed that
    master. `response_delivery`: reports the delivery of the responses, or None if that is not possible.
    """

    client_id: str
    namespace: str = ""
    language: str = ""
    client_version: str = ""
    remote: str = ""
    account: str = ""
    timeout_s: float | None = None
    listener: str = NODE_PORT
    is_repeated: bool = False
    response_delivery: ResponseDelivery | None = None

    @property
    def holder(self) -> str:
        """Return the owner of the messages that this call receives.

        The account is part of the owner, because client ids are not secret and two accounts may use the same
        one. Names of accounts contain no "/".
        """
        return f"{self.account}/{self.client_id}" if self.account else self.client_id
