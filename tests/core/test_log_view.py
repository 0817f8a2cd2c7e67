"""LogView against a plain list of terms."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dledger.core.log_view import LogView
from dledger.core.values import NO_BASE, Base, TermRun
from tests.core.driver import founded_by, runs_of


class LogViewMachine(RuleBasedStateMachine):
    """`terms[i]` is the term of entry begin + i; `writes` are disk writes under way."""

    @initialize(
        base_index=st.sampled_from([-1, -1, 0, 4]),
        rises=st.lists(st.sampled_from([0, 0, 0, 1, 2]), max_size=8),
    )
    def start(self, base_index: int, rises: list[int]) -> None:
        base = NO_BASE if base_index < 0 else Base(base_index, 2, 100, 7)
        self.base = base
        self.terms: list[int] = []
        for rise in rises:
            self.terms.append(max(self.last_term, 1) + rise)
        self.durable = base.index + len(self.terms)
        self.generation = 0
        self.writes: list[tuple[int, int, int]] = []
        self.log = LogView(
            base, runs_of(self.terms, base.index + 1), base.index + len(self.terms), founded_by("a")
        )

    @property
    def last_term(self) -> int:
        return self.terms[-1] if self.terms else self.base.term

    @property
    def end(self) -> int:
        return self.base.index + len(self.terms)

    def term_of(self, index: int) -> int:
        return self.base.term if index == self.base.index else self.terms[index - self.base.index - 1]

    @rule(rises=st.lists(st.sampled_from([0, 0, 1, 3]), min_size=1, max_size=6))
    def append(self, rises: list[int]) -> None:
        first, new = self.end + 1, []
        for rise in rises:
            new.append((new[-1] if new else max(self.last_term, 1)) + rise)
        self.log.append(runs_of(new, first), first + len(new) - 1)
        self.terms += new
        self.writes.append((self.end, self.last_term, self.generation))

    @precondition(lambda self: self.terms)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        last = data.draw(st.integers(self.base.index, self.end - 1))
        self.log.truncate_after(last)
        del self.terms[last - self.base.index :]
        self.durable = min(self.durable, last)
        self.generation += 1

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def a_write_ends(self, data: st.DataObject) -> None:
        last, term, generation = data.draw(st.sampled_from(self.writes))
        news = self.log.stored(last, term, generation)
        valid = generation == self.generation and self.base.index < last <= self.end
        valid = valid and self.term_of(last) == term
        assert news == (valid and last > self.durable)
        if news:
            self.durable = last

    @rule(index=st.integers(-2, 30), term=st.integers(-1, 12))
    def holds(self, index: int, term: int) -> None:
        expected = index == -1 or (self.base.index <= index <= self.end and self.term_of(index) == term)
        assert self.log.holds(index, term) == expected

    @rule(term=st.integers(-1, 12))
    def last_of_term(self, term: int) -> None:
        found = [i for i in range(self.base.index, self.end + 1) if self.term_of(i) == term]
        assert self.log.last_index_of_term(term) == (found[-1] if found else None)

    @precondition(lambda self: self.terms)
    @rule(data=st.data())
    def spans(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(self.base.index + 1, self.end))
        last = data.draw(st.integers(first, self.end))
        terms = [self.term_of(i) for i in range(first, last + 1)]
        assert list(self.log.runs_between(first, last)) == runs_of(terms, first)
        of_term = [i for i in range(self.base.index + 1, self.end + 1) if self.term_of(i) == terms[0]]
        assert self.log.first_index_of_term_at(first) == of_term[0]

    @invariant()
    def equals_the_list(self) -> None:
        log = self.log
        assert (log.begin_index, log.end_index, log.end_term) == (
            self.base.index + 1,
            self.end,
            self.last_term,
        )
        assert [log.term_at(i) for i in range(self.base.index, self.end + 1)] == [self.base.term, *self.terms]
        assert (log.durable_index, log.generation) == (self.durable, self.generation)
        assert log.verified_index <= log.end_index


LogViewMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestLogView = LogViewMachine.TestCase


def test_a_completion_of_an_older_generation_is_void() -> None:
    log = LogView(NO_BASE, [TermRun(1, 0)], 3, founded_by("a"))
    log.append([TermRun(1, 4)], 5)
    log.truncate_after(3)
    log.append([TermRun(1, 4)], 5)
    assert not log.stored(5, 1, 0)
    assert log.durable_index == 3
    assert log.stored(5, 1, 1)
