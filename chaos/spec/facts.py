"""What a trace says of things that never change: the histories and bodies of entries, and what clients sent.

These are the constants of the specification. A trace tells them in pieces; two pieces that contradict each
other do so in whatever order the steps were taken, so a search that goes back need not take them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaos.spec.state import NotYet, Refused

Event = Mapping[str, Any]


class Facts:
    def __init__(self) -> None:
        #: (index, term) -> the checksum over the whole log up to there (rule 6, log matching).
        self._chains: dict[tuple[int, int], str] = {}
        self._bodies: dict[int, int] = {}  # index -> mid
        self._places: dict[int, int] = {}  # mid -> index
        self._sent: dict[int, list[int]] = {}  # op -> its mids
        self._invoked: set[int] = set()
        self._failed: set[int] = set()

    def chain(self, index: int, term: int, chain: str) -> None:
        """Tell the history of an entry."""
        if index >= 0 and self._chains.setdefault((index, term), chain) != chain:
            known = self._chains[index, term]
            raise Refused(f"log matching: entry {index} of term {term} has histories {known} and {chain}")

    def may_be(self, index: int, term: int, chain: str) -> bool:
        return self._chains.get((index, term), chain) == chain

    # -- clients' operations and sessions ------------------------------------------------------------------

    def item(self, event: Event) -> None:
        """One message of a batch that is sent next."""
        self._send(int(event["op"]), int(event["mid"]), event)

    def invoke(self, event: Event) -> None:
        if "mid" in event:
            self._send(int(event["op"]), int(event["mid"]), event)

    def _send(self, op: int, mid: int, event: Event) -> None:
        self._sent.setdefault(op, []).append(mid)
        self._invoked.add(mid)

    def complete(self, event: Event) -> None:
        """An append is answered: with its first index, or with a refusal, after which it is nowhere."""
        mids = self._sent.get(int(event["op"]), [])
        if event["type"] == "fail":
            self._failed.update(mids)
            for mid in mids:
                if mid in self._places:
                    raise Refused(f"message {mid} was refused, and is stored at {self._places[mid]}")
        elif event["type"] == "ok" and event.get("lidx", -1) >= 0:
            for place, mid in enumerate(mids):
                self.body(event["lidx"] + place, mid)

    def last_of(self, event: Event) -> int:
        """The last index that an answer speaks of."""
        return int(event["lidx"]) + max(len(self._sent.get(int(event["op"]), [])), 1) - 1

    def body(self, index: int, mid: int) -> None:
        """Somebody says what the committed entry at an index is. Sessions store a retry once."""
        if mid not in self._invoked:
            raise NotYet(f"nobody has sent message {mid}, which is at {index}")
        if mid in self._failed:
            raise Refused(f"message {mid} was refused, and is stored at {index}")
        if self._bodies.setdefault(index, mid) != mid:
            raise Refused(f"at {index} is message {mid}, and was message {self._bodies[index]}")
        if self._places.setdefault(mid, index) != index:
            raise Refused(f"message {mid} is stored at {self._places[mid]}, and again at {index}")
