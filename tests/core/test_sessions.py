"""The session table against an oracle that reads the whole log again each time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dledger.core.sessions import RESULTS_KEPT, SequenceStatus, SessionTable, StoredBatch

LIMIT = 3


@dataclass(frozen=True)
class Open:
    index: int

    @property
    def last_index(self) -> int:
        return self.index


@dataclass(frozen=True)
class Done:
    session_id: int
    seq: int
    result: StoredBatch

    @property
    def last_index(self) -> int:
        return self.result.last_index


Item = Open | Done


def replay(log: list[Item]) -> dict[int, list[Done]]:
    """Sessions that live at the end of `log`, with all their batches; the one idle longest goes first."""
    alive: dict[int, list[Done]] = {}
    for item in log:
        if isinstance(item, Open):
            if len(alive) == LIMIT:
                idle = {key: (done[-1].last_index if done else key) for key, done in alive.items()}
                del alive[min(idle, key=lambda key: idle[key])]
            alive[item.index] = []
        else:
            alive[item.session_id].append(item)
    return alive


class SessionMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.log: list[Item] = []
        self.end = -1
        self.committed = -1
        self.table = SessionTable(max_sessions=LIMIT)

    @rule(gap=st.integers(0, 2))
    def open(self, gap: int) -> None:
        self.end += 1 + gap
        self.log.append(Open(self.end))
        self.table.opened(self.end)

    @precondition(lambda self: replay(self.log))
    @rule(data=st.data(), count=st.integers(1, 3), crc=st.integers(0, 2))
    def append(self, data: st.DataObject, count: int, crc: int) -> None:
        alive = replay(self.log)
        session_id = data.draw(st.sampled_from(sorted(alive)))
        seq = len(alive[session_id]) + 1
        first = self.end + 2
        result = StoredBatch(first, count, crc, 1, first * 100, first + count - 1)
        self.end = result.last_index
        self.log.append(Done(session_id, seq, result))
        self.table.appended(session_id, seq, result)

    @precondition(lambda self: self.end > self.committed)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        cut = [item.last_index for item in self.log if item.last_index > self.committed]
        last = data.draw(st.sampled_from([self.committed, *cut]))
        self.log = [item for item in self.log if item.last_index <= last]
        self.end = last
        self.table.truncate_after(last)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        ends = [item.last_index for item in self.log if item.last_index > self.committed]
        if ends:
            self.committed = data.draw(st.sampled_from(ends))
        self.table.committed(self.committed)

    @rule()
    def restart(self) -> None:
        """From the stored table of what is committed, then the heads of the log after it."""
        stored = self.table.encode_committed()
        self.table = SessionTable(max_sessions=LIMIT)
        self.table.load(stored)
        assert self.table.encode_committed() == stored
        for item in self.log:
            if item.last_index > self.committed:
                if isinstance(item, Open):
                    self.table.opened(item.index)
                else:
                    self.table.appended(item.session_id, item.seq, item.result)

    @rule(
        session_id=st.integers(0, 12), seq=st.integers(1, 8), count=st.integers(1, 3), crc=st.integers(0, 2)
    )
    def judge(self, session_id: int, seq: int, count: int, crc: int) -> None:
        alive = replay(self.log)
        expected: tuple[SequenceStatus, StoredBatch | None]
        if session_id not in alive:
            expected = SequenceStatus.EXPIRED, None
        elif seq > len(alive[session_id]) + 1:
            expected = SequenceStatus.GAP, None
        elif seq == len(alive[session_id]) + 1:
            expected = SequenceStatus.NEW, None
        else:
            first_try = alive[session_id][seq - 1].result
            same = (first_try.count, first_try.crc) == (count, crc)
            expected = (SequenceStatus.REPEAT if same else SequenceStatus.CONFLICT), first_try
        assert self.table.judge(session_id, seq, count, crc, self.committed) == expected

    @rule(session_id=st.integers(0, 12))
    def unknown_since(self, session_id: int) -> None:
        if session_id in replay(self.log):
            return
        committed = [item for item in self.log if item.last_index <= self.committed]
        expected = session_id
        if session_id in replay(committed):
            # The shortest log that has forgotten it: whoever commits its end has forgotten it for good.
            ends = range(len(committed) + 1, len(self.log) + 1)
            expected = next(
                self.log[n - 1].last_index for n in ends if session_id not in replay(self.log[:n])
            )
        elif opened := [item for item in self.log if isinstance(item, Open) and item.index == session_id]:
            evicting = range(self.log.index(opened[0]) + 1, len(self.log) + 1)
            end = next(self.log[n - 1].last_index for n in evicting if session_id not in replay(self.log[:n]))
            expected = end if end > self.committed else session_id
        assert self.table.unknown_since(session_id) == expected

    @invariant()
    def what_is_stored_is_what_is_committed(self) -> None:
        fresh = SessionTable(max_sessions=LIMIT)
        fresh.load(self.table.encode_committed())
        alive = replay([item for item in self.log if item.last_index <= self.committed])
        assert len(fresh) == len(alive)
        for session_id, done in alive.items():
            judged = fresh.judge(session_id, len(done) + 1, 1, 0, self.committed)
            assert judged == (SequenceStatus.NEW, None)
        assert len(self.table) == len(replay(self.log)) <= LIMIT


SessionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestSessions = SessionMachine.TestCase


def filled(batches: int) -> SessionTable:
    table = SessionTable()
    table.opened(0)
    for seq in range(1, batches + 1):
        table.appended(0, seq, StoredBatch(seq * 2, 1, 0, 1, seq * 100, seq * 2))
    return table


def test_as_many_results_are_kept_as_batches_may_be_uncommitted() -> None:
    table = filled(RESULTS_KEPT)
    assert table.judge(0, RESULTS_KEPT + 1, 1, 0, 1)[0] is SequenceStatus.WINDOW_FULL
    assert table.judge(0, RESULTS_KEPT + 1, 1, 0, 2)[0] is SequenceStatus.NEW
    assert table.judge(0, 1, 1, 0, 2)[0] is SequenceStatus.REPEAT
    table = filled(RESULTS_KEPT + 1)
    assert table.judge(0, 1, 1, 0, 4)[0] is SequenceStatus.FORGOTTEN
    assert table.judge(0, 2, 1, 0, 4)[0] is SequenceStatus.REPEAT


def test_undoing_brings_back_results_that_had_fallen_out_of_the_window() -> None:
    table = filled(RESULTS_KEPT)
    table.committed(2)
    table.appended(0, RESULTS_KEPT + 1, StoredBatch(500, 1, 0, 1, 0, 500))
    assert table.judge(0, 1, 1, 0, 2)[0] is SequenceStatus.FORGOTTEN
    table.truncate_after(499)
    assert table.judge(0, 1, 1, 0, 2)[0] is SequenceStatus.REPEAT


def test_an_eviction_that_was_truncated_says_nothing_of_a_session() -> None:
    """Else its client would be told to wait for the commit of an entry that is in no log."""
    table = SessionTable(max_sessions=2)
    for index in (10, 11, 12):
        table.opened(index)
    assert table.unknown_since(10) == 12
    table.truncate_after(9)
    assert len(table) == 0
    assert [table.unknown_since(index) for index in (10, 11, 12)] == [10, 11, 12]
    for index in (10, 11, 12):
        table.opened(index)
    table.committed(11)
    assert table.unknown_since(10) == 12, "the eviction is not committed yet"
    table.committed(12)
    assert table.unknown_since(10) == 10


@pytest.mark.parametrize("data", [b"", b"\0\0\0\1", b"\0\0\0\0x", b"\0\0\0\1" + b"\0" * 27])
def test_what_is_no_session_table_is_refused_and_changes_nothing(data: bytes) -> None:
    table = filled(3)
    before = table.encode_committed()
    with pytest.raises(ValueError, match="not a session table"):
        table.load(data)
    assert table.encode_committed() == before
    assert len(table) == 1


def test_a_recovery_ends_all_sessions_and_moves_the_ids_of_new_ones() -> None:
    table = SessionTable(max_sessions=2)
    table.opened(3)
    table.appended(3, 1, StoredBatch(5, 1, 0, 1, 100, 5))
    offset = (1 << 48) + 17
    table.recovered(offset)
    assert len(table) == 0 and table.offset == offset
    # An entry at an index where the former cluster opened a session, too, gives another id.
    table.opened(7)
    assert table.judge(7, 1, 1, 0, 0)[0] is SequenceStatus.EXPIRED
    assert table.unknown_since(7) < 0, "no entry of this log can have opened it"
    assert table.judge(offset + 7, 1, 1, 0, 0)[0] is SequenceStatus.NEW
    table.recovered(offset)  # repeated by the next configuration
    assert len(table) == 1
    loaded = SessionTable()
    loaded.load(table.encode_all())
    assert loaded.encode_all() == table.encode_all() and loaded.session_at(9) == offset + 9
    table.truncate_after(6)
    assert len(table) == 0


def test_an_eviction_after_a_recovery_is_final_once_its_entry_is_committed() -> None:
    table = SessionTable(max_sessions=1)
    table.recovered(1 << 48)
    table.opened(10)
    table.opened(20)
    assert table.unknown_since(table.session_at(10)) == 20
    table.committed(20)
    assert table.unknown_since(table.session_at(10)) == 10
