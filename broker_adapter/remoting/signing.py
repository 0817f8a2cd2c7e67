"""Signatures of RocketMQ 4.x: HMAC-SHA1 over the values of a command's fields, in the order of their names,
and its body. No time is in them: what was overheard can be sent again.

Facts: AclClientRPCHook, AclUtils and PlainAccessValidator of RocketMQ.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Final

from broker_adapter.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
#: Added by clients of 4.x beside the fields that they sign; brokers of RocketMQ leave it out.
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_NEVER = frozenset({SIGNATURE})


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account, as a client names it (SessionCredentials). `security_token`: goes with each request."""

    access_key: str
    secret: str = field(repr=False)
    security_token: str = field(default="", repr=False)


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Add who sends it and the signature, in place of such that it has."""
    fields = command.fields
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields[SIGNATURE] = _signature(command, credentials.secret, _NEVER)


def is_signed_with(command: RemotingCommand, secret: str) -> bool:
    """Whether its signature was made with this secret."""
    found = command.fields.get(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(_signature(command, secret, _NEVER).encode(), found):
        return True
    if _UNIQUE_KEY_QUERY not in command.fields:
        return False
    without = _signature(command, secret, _NEVER | {_UNIQUE_KEY_QUERY})
    return hmac.compare_digest(without.encode(), found)


def _signature(command: RemotingCommand, secret: str, left_out: frozenset[str]) -> str:
    fields = command.fields
    made = hmac.new(secret.encode(), digestmod=sha1)
    for name in sorted(fields):
        if name not in left_out:
            made.update(fields[name].encode("utf-8", "replace"))
    made.update(command.body)
    return base64.b64encode(made.digest()).decode()
