"""A state machine with a file of its own, as small as it can be and still able to go wrong in every way."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple
from zlib import crc32

from dledger import Applied, AppliedEntry
from dledger.testing import MachineFiles


class Derived(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    end_pos: int
    total: int  # the state behind this entry


class Ledger:
    """State: a sum over all entries that depends on their order. Derived: a row for each entry.

    It writes its file when it likes, and sometimes only a part of what it has: an older state is one, too.
    """

    def __init__(self, files: MachineFiles, durable_index: Callable[[], int], rng: Random) -> None:
        self._files = files
        self._durable_index = durable_index
        self._rng = rng
        self._eagerness = rng.choice((0.0, 0.1, 0.5, 1.0))
        self._total = 0
        self._rows: list[Derived] = []

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        for entry in entries:
            assert not self._rows or entry.index > self._rows[-1].index, "applied twice"
            self._total = crc32(
                b"%d %d %d %s" % (entry.index, entry.term, entry.pos, entry.body), self._total
            )
            self._add(entry, self._total)
            if self._rng.random() < self._eagerness / len(entries):
                self._persist()
        if self._rng.random() < self._eagerness:
            self._persist()

    def save(self) -> Iterable[bytes]:
        return [b"%d" % self._total]

    def load(self, chunks: Iterable[bytes]) -> None:
        self._total = int(b"".join(chunks) or b"0")
        self._rows.clear()

    def recover(self) -> Applied | None:
        content = self._files.read()
        if content is None:
            return None
        self._rows = [Derived(*row) for row in marshal.loads(content)]
        self._total = self._rows[-1].total
        return Applied(*self._rows[-1][:3])

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        for entry in entries:
            self._add(entry, -1)

    def close(self) -> None:
        self._persist()

    def digest(self) -> object:
        return self._total

    def derived_from(self) -> list[int]:
        return [row.index for row in self._rows]

    def _add(self, entry: AppliedEntry, total: int) -> None:
        self._rows.append(Derived(entry.index, entry.term, entry.pos + 48 + len(entry.body), total))

    def _persist(self) -> None:
        rows = self._rows
        if self._rng.random() < 0.3:
            rows = rows[: self._rng.randint(0, len(rows))]
        self._write(rows)

    def _write(self, rows: list[Derived]) -> None:
        if rows and rows[-1].total >= 0 and rows[-1].index <= self._durable_index():
            # Each time all of them: pickle takes ten times as long.
            self._files.write(marshal.dumps(list(map(tuple, rows))))
            if self._rng.random() < 0.5:
                self._files.sync()
