"""Who calls, as far as an answer depends on it. Travels with a call from node to node."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: What a client in Node.js is called here: it calls itself HTTP.
NODE_JS = "NODE_JS"
PYTHON = "PYTHON"
JAVA = "JAVA"
GO = "GO"

#: The node's own port, and those for clients alone.
NODE_PORT, PLAIN_PORT, TLS_PORT = "", "plain", "tls"


class Passage:
    """Whether all answers of a call were passed on to its caller. Who has the way to the caller settles it,
    once; who gives answers that matter asks to be told."""

    def __init__(self) -> None:
        self._is_passed_on: bool | None = None
        self._asking: list[Callable[[bool], None]] = []

    def then(self, told: Callable[[bool], None]) -> None:
        """`told` is called when it is known; now, if it is."""
        if self._is_passed_on is None:
            self._asking.append(told)
        else:
            told(self._is_passed_on)

    def settle(self, is_passed_on: bool) -> None:
        """What is said first counts."""
        if self._is_passed_on is None:
            self._is_passed_on = is_passed_on
            for told in self._asking:
                told(is_passed_on)


class CallContext(NamedTuple):
    """Of one call. `remote` is host:port, "" if the caller has no IP address; `timeout_s` what is left of its
    deadline, None without one; `account` who it has proved to be; `listener` the port it came to.
    `is_repeated`: a master was asked before and has not answered, maybe because the call ended it. `passage`:
    what becomes of its answers, None if nobody tells."""

    client_id: str
    namespace: str = ""
    language: str = ""
    client_version: str = ""
    remote: str = ""
    account: str = ""
    timeout_s: float | None = None
    listener: str = NODE_PORT
    is_repeated: bool = False
    passage: Passage | None = None

    @property
    def holder(self) -> str:
        """Who holds what this call is given. Client ids are no secrets, and two accounts may have the same:
        each speaks for what its own calls were given. No account has a "/" in it."""
        return f"{self.account}/{self.client_id}" if self.account else self.client_id
