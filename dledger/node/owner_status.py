"""Collects status and metrics from the program that owns a node, and catches the program's errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import Metric

from dledger.infra.logs import get_logger

_log = get_logger("node")

#: Sent in every status response.
_MAX_BYTES = 64 << 10


def _nothing() -> Mapping[str, Any]:
    return {}


class OwnerStatus:
    def __init__(self) -> None:
        self.give: Callable[[], Mapping[str, Any]] = _nothing
        self.collectors: list[Callable[[], Iterable[Metric]]] = []
        self._complaint = ""  # the last logged error: a repeated error is logged once

    def shown(self) -> dict[str, Any]:
        """Return the program's status, or {"error": ...} if it is not a JSON object or is too large."""
        try:
            text = json.dumps(dict(self.give()), allow_nan=False)
            if len(text) > _MAX_BYTES:
                raise ValueError(f"the JSON text is {len(text)} bytes long; the limit is {_MAX_BYTES}")
        except Exception as error:
            return {"error": self._complain("status", error)}
        shown: dict[str, Any] = json.loads(text)
        return shown

    def metrics(self) -> list[Metric]:
        """Return the metrics of all collectors that succeed."""
        collected: list[Metric] = []
        for collect in self.collectors:
            try:
                collected += collect()
            except Exception as error:
                self._complain("metrics", error)
        return collected

    def _complain(self, kind: str, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        if self._complaint != text:
            self._complaint = text
            _log.error("the owner of this node failed to report", what=kind, reason=text)
        return text
