"""What gRPC's words about a failed connection mean, for people.

gRPC tells a failed handshake as UNAVAILABLE and a string. The definite ones get a number of their own;
"Socket closed" only lets one guess, because a server that refuses a certificate just hangs up.
"""

from __future__ import annotations

from typing import NamedTuple

from dledger.errors import Code
from dledger.rpc.transport.channels import ChannelSecurity


class Explanation(NamedTuple):
    code: Code
    message: str


_HANGS_UP = ("Socket closed", "Connection reset by peer", "Broken pipe")

#: words of gRPC -> ours, for clients that speak TLS.
_DEFINITE = (
    (
        "WRONG_VERSION_NUMBER",
        Code.PLAINTEXT_REFUSED,
        "the server speaks plain text, and this side wants TLS",
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


def explain(address: str, details: str | None, security: ChannelSecurity | None) -> Explanation | None:
    """Why the connection did not come about, if TLS has to do with it."""
    words = details or ""
    if "failed to connect" not in words:
        return None
    if security is None:
        if any(sign in words for sign in _HANGS_UP):
            return Explanation(
                Code.NETWORK_ERROR,
                "the server hung up on plain text, as one does that wants TLS; this client was given no CA "
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
            else "it may want a certificate, and this side was given none"
        )
        return Explanation(Code.NETWORK_ERROR, f"the server hung up during the TLS handshake; {own}")
    return None
