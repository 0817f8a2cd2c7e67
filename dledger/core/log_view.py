"""The Raft core's view of its own log: ends, terms, configurations and the durable index, without bodies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from dledger.core.values import Base, Membership, MembershipAt, TermRun


class LogView:
    """Positions of one node's log.

    Entries of one term are contiguous, so a short list of runs describes the terms of a log of any length.
    A lookup costs O(log number of terms).
    """

    def __init__(
        self, base: Base, runs: Sequence[TermRun], end_index: int, memberships: Sequence[MembershipAt]
    ) -> None:
        """`memberships`: the configuration in force at the base, and those of the entries, in log order."""
        self.base = base
        self.end_index = end_index  # ledger_end_index
        self.durable_index = end_index  # recovery ends with an fdatasync of all it accepted (rule 1)
        self.verified_index = base.index  # equal to the current leader's log up to here, in this term
        self.generation = 0  # grows with each truncation; completions of older writes are void
        self._carried_out = 0  # newest generation for which the disk has reported a completion
        self._runs: list[TermRun] = list(runs)
        self._starts: list[int] = [run.first_index for run in runs]
        self._memberships: list[MembershipAt] = list(memberships)
        self._check()

    @property
    def begin_index(self) -> int:
        return self.base.index + 1

    @property
    def end_term(self) -> int:
        """ledger_end_term: the stored term of the last entry, or -1 if the log never had an entry."""
        return self._runs[-1].term if self.end_index > self.base.index else self.base.term

    @property
    def is_being_cut(self) -> bool:
        """True while a truncation or a reset is pending on disk."""
        return self._carried_out != self.generation

    @property
    def runs(self) -> tuple[TermRun, ...]:
        return tuple(self._runs)

    @property
    def membership(self) -> Membership:
        """The configuration in force: that of the last configuration entry, committed or not."""
        return self._memberships[-1].membership

    @property
    def membership_index(self) -> int:
        """The index of the entry of the configuration in force."""
        return self._memberships[-1].index

    @property
    def memberships(self) -> tuple[MembershipAt, ...]:
        """The configuration in force at the base and all later ones."""
        return tuple(self._memberships)

    def memberships_from(self, index: int) -> tuple[MembershipAt, ...]:
        """Return the configuration in force at `index` and all later ones."""
        begin = bisect_right(self._memberships, index, key=_index_of) - 1
        return tuple(self._memberships[begin:])

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`, which must be in base.index..end_index. Returns -1 for
        index -1."""
        assert self.base.index <= index <= self.end_index, f"no term at {index}: {self!r}"
        if index == self.base.index:
            return self.base.term
        return self._runs[bisect_right(self._starts, index) - 1].term

    def holds(self, index: int, term: int) -> bool:
        """Return True if the log holds an entry with this index and term. Every log holds index -1."""
        if index == -1:
            return True
        return self.base.index <= index <= self.end_index and self.term_at(index) == term

    def first_index_of_term_at(self, index: int) -> int:
        """Return the first stored index of the term of the entry at `index`."""
        assert self.begin_index <= index <= self.end_index
        return max(self._starts[bisect_right(self._starts, index) - 1], self.begin_index)

    def last_index_of_term(self, term: int) -> int | None:
        """Return the last stored index of `term`, or None."""
        for position in range(len(self._runs) - 1, -1, -1):
            if self._runs[position].term == term:
                follows = position + 1 < len(self._runs)
                return self._starts[position + 1] - 1 if follows else self.end_index
            if self._runs[position].term < term:
                break
        return self.base.index if self.base.term == term else None

    def runs_between(self, first_index: int, last_index: int) -> tuple[TermRun, ...]:
        """Term runs of first_index..last_index, with the first run cut to start at first_index."""
        assert self.begin_index <= first_index <= last_index <= self.end_index
        low = bisect_right(self._starts, first_index) - 1
        high = bisect_right(self._starts, last_index)
        return tuple(TermRun(run.term, max(run.first_index, first_index)) for run in self._runs[low:high])

    def append(
        self, runs: Sequence[TermRun], last_index: int, memberships: Sequence[MembershipAt] = ()
    ) -> None:
        """Append the entries runs[0].first_index..last_index. Terms never decrease along a log.
        `memberships`: the configurations among them, which are in force from now on."""
        assert runs and runs[0].first_index == self.end_index + 1 <= last_index, (runs, last_index, self)
        term = self.end_term
        for run in runs:
            assert run.term >= term, f"term falls from {term} to {run} in {self!r}"
            if run.term != term or not self._runs:
                self._runs.append(run)
                self._starts.append(run.first_index)
                term = run.term
        self.end_index = last_index
        if memberships:
            assert self.membership_index < memberships[0].index and memberships[-1].index <= last_index
            self._memberships.extend(memberships)

    def truncate_after(self, last_index: int) -> None:
        """Delete all entries after last_index and start a new generation."""
        assert self.base.index <= last_index < self.end_index
        while self._starts and self._starts[-1] > last_index:
            self._starts.pop()
            self._runs.pop()
        while self._memberships[-1].index > last_index:
            self._memberships.pop()
        self.end_index = last_index
        self.durable_index = min(self.durable_index, last_index)
        self.verified_index = min(self.verified_index, last_index)
        self.generation += 1
        self._check()

    def purge(self, base: Base) -> None:
        """Drop the entries up to `base`, which is durable and committed."""
        assert self.base.index <= base.index <= self.durable_index, (base, self)
        if base.index == self.base.index:
            return
        assert self.term_at(base.index) == base.term
        self.base = base
        while len(self._starts) > 1 and self._starts[1] <= self.begin_index:
            del self._starts[0], self._runs[0]
        self._memberships = list(self.memberships_from(base.index))
        if self.end_index == base.index:
            self._starts.clear()
            self._runs.clear()
        self._check()

    def reset_to(self, base: Base, membership: MembershipAt) -> None:
        """Drop all entries and start after `base`, where `membership` is in force, in a new generation."""
        assert base.index > self.base.index
        self.base = base
        self._memberships = [membership]
        self._starts.clear()
        self._runs.clear()
        self.end_index = self.durable_index = self.verified_index = base.index
        self.generation += 1
        self._check()

    def stored(self, last_index: int, term: int, generation: int) -> bool:
        """Record a completed write. Return True if the durable index advanced.

        Writes of an older generation, and writes of entries deleted since, have no effect.
        """
        if generation != self.generation or last_index > self.end_index:
            return False
        self._carried_out = generation
        if last_index <= self.base.index or self.term_at(last_index) != term:
            return False
        if last_index > self.durable_index:
            self.durable_index = last_index
            return True
        return False

    def _check(self) -> None:
        assert self.base.index <= self.durable_index <= self.end_index
        assert self.base.index <= self.verified_index <= self.end_index
        assert bool(self._runs) == (self.end_index > self.base.index), repr(self)
        assert not self._runs or self._starts[0] <= self.begin_index
        assert self._memberships and self._memberships[0].index <= self.base.index, repr(self)
        assert self.membership_index <= self.end_index, repr(self)

    def __repr__(self) -> str:
        return (
            f"LogView({self.begin_index}..{self.end_index}, end_term={self.end_term},"
            f" durable={self.durable_index}, verified={self.verified_index}, generation={self.generation})"
        )


def confirmed_memberships(
    recorded: Sequence[MembershipAt], base: Base, runs: Sequence[TermRun], end_index: int
) -> list[MembershipAt]:
    """Return those of the recorded configurations whose entries the log contains, or had before its base."""
    log = LogView(base, runs, end_index, [MembershipAt(-1, -1, Membership(("unknown",)))])
    found = [
        known for known in recorded if known.index < log.begin_index or log.holds(known.index, known.term)
    ]
    begin = max(0, bisect_right(found, base.index, key=_index_of) - 1)
    return found[begin:]


def _index_of(known: MembershipAt) -> int:
    return known.index
