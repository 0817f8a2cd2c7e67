"""Signed metadata, as clients make it."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime
from hashlib import sha1

from tests.broker_adapter.v5.world import HEADERS

NOW_S = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
DATE = "20260301T120000Z"


def signed(key: str, secret: str, date: str = DATE, *, upper: bool = False) -> dict[str, str]:
    signature = hmac.new(secret.encode(), date.encode(), sha1).hexdigest()
    signature = signature.upper() if upper else signature
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {**HEADERS, "x-mq-date-time": date, "authorization": text}
