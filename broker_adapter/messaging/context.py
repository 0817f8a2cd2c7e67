"""Who calls, as far as an answer depends on it. Travels with a call from node to node."""

from __future__ import annotations

from typing import NamedTuple

#: What a client in Node.js is called here: it calls itself HTTP.
NODE_JS = "NODE_JS"
PYTHON = "PYTHON"
JAVA = "JAVA"
GO = "GO"

#: The node's own port, and those for clients alone.
NODE_PORT, PLAIN_PORT, TLS_PORT = "", "plain", "tls"


class CallContext(NamedTuple):
    """Of one call. `remote` is host:port, "" if the caller has no IP address; `timeout_s` what is left of its
    deadline, None without one; `account` who it has proved to be; `listener` the port it came to.
    `is_repeated`: a master was asked before and has not answered, maybe because the call ended it."""

    client_id: str
    namespace: str = ""
    language: str = ""
    client_version: str = ""
    remote: str = ""
    account: str = ""
    timeout_s: float | None = None
    listener: str = NODE_PORT
    is_repeated: bool = False
