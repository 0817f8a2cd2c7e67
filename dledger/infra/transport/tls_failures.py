"""Explains gRPC's errors for failed connections, with and without TLS.

gRPC reports a failed handshake as UNAVAILABLE with a string. Causes that are certain get their own codes.
"Socket closed" is ambiguous, because a server that refuses a certificate merely closes the connection.
"""

from __future__ import annotations

from typing import NamedTuple

from dledger.errors import Code
from dledger.infra.transport.channels import ChannelSecurity


class Explanation(NamedTuple):
    code: Code
    message: str


_HANGS_UP = ("Socket closed", "Connection reset by peer", "Broken pipe")

#: gRPC's words -> code and message, for clients that use TLS.
_DEFINITE = (
    (
        "WRONG_VERSION_NUMBER",
        Code.PLAINTEXT_REFUSED,
        "the server uses plain text, and this side requires TLS",
    ),
    (
        "certificate has expired",
        Code.CERTIFICATE_REFUSED,
        "the server's certificate has expired",
    ),
    (
        "certificate is not yet valid",
        Code.CERTIFICATE_REFUSED,
        "the server's certificate is not valid yet (do the clocks agree?)",
    ),
    (
        "Hostname Verification Check failed",
        Code.CERTIFICATE_REFUSED,
        "the server's certificate does not name {name}",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        Code.CERTIFICATE_REFUSED,
        "the server's certificate is not signed by a CA that this side trusts",
    ),
)

#: gRPC's words -> explanation, with and without TLS.
_UNREACHABLE = (
    ("Connection refused", "connection refused: no server listens there"),
    ("errors resolving", "the host name is unknown"),
    ("Failed parsing HTTP/2", "no gRPC server listens there: is this another port of the node?"),
    ("Method not found", "this gRPC port does not serve the log: is it for RocketMQ 5 clients only?"),
)
_ABSENT = ("Connection refused", "errors resolving")


def is_absent(details: str) -> bool:
    """Return True if no server listens at the address."""
    return any(sign in details for sign in _ABSENT)


def explain_unreachable(details: str | None) -> str | None:
    """Explain why there is no connection, unless TLS is the cause."""
    return next((text for sign, text in _UNREACHABLE if sign in (details or "")), None)


def explain(address: str, details: str | None, security: ChannelSecurity | None) -> Explanation | None:
    """Explain why the connection failed, if TLS is the likely cause."""
    words = details or ""
    if "failed to connect" not in words:
        return None
    if security is None:
        if any(sign in words for sign in _HANGS_UP):
            return Explanation(
                Code.NETWORK_ERROR,
                "the server closed the plain-text connection, so it may require TLS; this client has no CA "
                "(--tls-ca, tls=TlsFiles(...))",
            )
        return None
    for sign, code, message in _DEFINITE:
        if sign in words:
            name = security.server_name or address.rpartition(":")[0]
            return Explanation(code, message.format(name=name))
    if any(sign in words for sign in _HANGS_UP):
        own = (
            "this side's certificate may be expired or of a CA that the server does not trust"
            if security.has_certificate
            else "it may require a certificate, and this side has none"
        )
        return Explanation(
            Code.NETWORK_ERROR, f"the server closed the connection during the TLS handshake; {own}"
        )
    return None
