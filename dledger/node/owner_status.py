"""What the program that owns a node adds to its status: a JSON object, and metrics. Never trusted to work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import Metric

from dledger.logs import get_logger

_log = get_logger("node")

#: It travels in every answer to a question about the status.
_MAX_BYTES = 64 << 10


def _nothing() -> Mapping[str, Any]:
    return {}


class OwnerStatus:
    def __init__(self) -> None:
        self.give: Callable[[], Mapping[str, Any]] = _nothing
        self.collectors: list[Callable[[], Iterable[Metric]]] = []
        self._complaint = ""  # what was logged last: once for all of a kind, not with every question

    def shown(self) -> dict[str, Any]:
        """What the program says; {"error": ...} in its place if that is no JSON object of bearable size."""
        try:
            text = json.dumps(dict(self.give()), allow_nan=False)
            if len(text) > _MAX_BYTES:
                raise ValueError(f"{len(text)} bytes of JSON, more than {_MAX_BYTES}")
        except Exception as error:
            return {"error": self._complain("status", error)}
        shown: dict[str, Any] = json.loads(text)
        return shown

    def metrics(self) -> list[Metric]:
        """Of those that can give them."""
        found: list[Metric] = []
        for collect in self.collectors:
            try:
                found += collect()
            except Exception as error:
                self._complain("metrics", error)
        return found

    def _complain(self, what: str, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        if self._complaint != text:
            self._complaint = text
            _log.error("the owner of this node failed to give what it wanted to show", what=what, reason=text)
        return text
