"""Signatures of RocketMQ 4.x.

A signature is the HMAC-SHA1 of the values of a command's fields, in the order of their names, and of its
body. It does not cover a timestamp, so an intercepted request can be replayed.

Sources: RocketMQ's AclClientRPCHook, AclUtils and PlainAccessValidator.
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
#: Added by 4.x clients but not signed; RocketMQ's brokers skip it.
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_NEVER = frozenset({SIGNATURE})


@dataclass(frozen=True, slots=True)
class Credentials:
    """A client account (RocketMQ's SessionCredentials). `security_token`: sent with each request."""

    access_key: str
    secret: str = field(repr=False)
    security_token: str = field(default="", repr=False)


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Add the access key and the signature. Existing ones are replaced."""
    fields = command.fields
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields[SIGNATURE] = _signature(command, credentials.secret, _NEVER)


def is_signed_with(command: RemotingCommand, secret: str) -> bool:
    """True if the command was signed with this secret."""
    signature = command.fields.get(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(_signature(command, secret, _NEVER).encode(), signature):
        return True
    if _UNIQUE_KEY_QUERY not in command.fields:
        return False
    without = _signature(command, secret, _NEVER | {_UNIQUE_KEY_QUERY})
    return hmac.compare_digest(without.encode(), signature)


def _signature(command: RemotingCommand, secret: str, excluded: frozenset[str]) -> str:
    fields = command.fields
    signature = hmac.new(secret.encode(), digestmod=sha1)
    for name in sorted(fields):
        if name not in excluded:
            signature.update(fields[name].encode("utf-8", "replace"))
    signature.update(command.body)
    return base64.b64encode(signature.digest()).decode()
