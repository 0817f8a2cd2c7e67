"""The part of the quick check that is about look-ups by key: which messages each of them found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from chaos.quick.trace import events_of


def lookups_of(readers: Sequence[Path]) -> Iterator[tuple[str, str, list[int]]]:
    """(topic, key, messages) of each look-up that was answered with all that it found."""
    for path in readers:
        begun: dict[int, tuple[str, str, list[int]]] = {}
        for event in events_of(path, ("op", "dlv")):
            if event["ev"] == "dlv":
                if event["op"] in begun:
                    begun[event["op"]][2].append(event["mid"])
            elif event["f"] != "lookup":
                continue
            elif event["type"] == "invoke":
                begun[event["op"]] = event["topic"], event["key"], []
            elif (found := begun.pop(event["op"], None)) and event.get("end_claim"):
                yield found
