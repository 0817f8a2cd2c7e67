"""The signature that clients send with every call: HMAC-SHA1 over the call's date. Bodies are not signed."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha1
from typing import Final

from broker_adapter.proxy.access.accounts import Account
from broker_adapter.proxy.messages.rejected import Code, Rejected

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"

_ALGORITHM = "MQv2-HMAC-SHA1"
_DATE_FORM = "%Y%m%dT%H%M%SZ"
_MAX_LENGTH = 4_096


def account_of(
    metadata: Mapping[str, str], accounts: Mapping[str, Account], *, now_s: float, freshness_s: float
) -> Account:
    """Who has signed a call. `now_s`: Unix time. Rejected (UNAUTHORIZED)."""
    text = metadata.get(AUTHORIZATION, "")
    if not text or len(text) > _MAX_LENGTH:
        raise _unauthorized("this server wants signed calls, and there is no signature in the metadata")
    fields = _fields(text)
    # What follows the access key is a place's and a product's name, of use elsewhere.
    key = fields.get("Credential", "").partition("/")[0]
    account = accounts.get(key)
    if account is None:
        raise _unauthorized(f"Username is not matched: no account has the access key {key[:64]!r}")
    date = metadata.get(DATE_TIME, "")
    if not hmac.compare_digest(_signature(account, date), _from_hex(fields.get("Signature", ""))):
        raise _unauthorized(f"Check signature failed for accessKey={key}")
    _check_date(date, now_s, freshness_s)
    return account


def _signature(account: Account, date: str) -> bytes:
    return hmac.new(account.secret.get_secret_value().encode(), date.encode(), sha1).digest()


def _from_hex(text: str) -> bytes:
    """Of either case; what is none fits no signature."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _fields(text: str) -> dict[str, str]:
    algorithm, _, rest = text.strip().partition(" ")
    if algorithm != _ALGORITHM:
        raise _unauthorized(f"signatures are made with {_ALGORITHM}")
    pairs = (part.strip().partition("=") for part in rest.split(","))
    return {name: value for name, _, value in pairs}


def _check_date(date: str, now_s: float, freshness_s: float) -> None:
    try:
        at_s = datetime.strptime(date, _DATE_FORM).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _unauthorized(f"{DATE_TIME} {date[:64]!r} is no time like 20260131T235959Z") from None
    if abs(now_s - at_s) > freshness_s:
        raise _unauthorized(f"{DATE_TIME} {date} is more than {freshness_s:.0f} s off: look at the clocks")


def _unauthorized(text: str) -> Rejected:
    return Rejected(Code.UNAUTHORIZED, text)
