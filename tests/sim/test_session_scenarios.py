"""Answers that end a session are final: a deposed leader must not give them from a log of its own."""

from __future__ import annotations

import pytest

from dledger.core.values import Role
from dledger.errors import Code, DLedgerError, NotLeader, SessionExpired
from dledger.replica.shell import AppendOutcome
from dledger.testing import Attempt
from tests.sim.cluster import SOON_MS, Cluster


def depose(c: Cluster) -> tuple[str, str]:
    """(the old leader, which does not know it yet, the new one); nothing passes between them."""
    old = c.elect()
    c.isolate(old)
    for stream in c.network.streams_of(old):
        stream.break_off(10_000, 0)
    c.run_until(lambda: c.leader() not in (None, old), limit_ms=SOON_MS)
    new = c.leader()
    assert new is not None
    assert c.process(old).replica.core.role is Role.LEADER, "it does not know yet"
    return old, new


def answer_of(c: Cluster, attempt: Attempt) -> AppendOutcome | DLedgerError:
    c.run_until(lambda: attempt.answer is not None, limit_ms=SOON_MS)
    assert attempt.answer is not None
    return attempt.answer


def test_session_that_an_uncommitted_entry_evicts_lives_on() -> None:
    c = Cluster(max_sessions=1)
    c.begin()
    session = c.open_session()
    old, new = depose(c)
    c.append(old, open_session=True)  # it will never be committed, and neither will what it evicts
    first = c.write(old, session=(session, 1))
    assert isinstance(answer_of(c, first), NotLeader)
    again = c.append(new, again=first.append, session=(session, 1))
    assert isinstance(answer_of(c, again), AppendOutcome), "the session lives"
    c.end()


@pytest.mark.parametrize("uncommitted", [0, 5])
def test_session_opened_behind_the_end_of_a_deposed_leader_is_not_said_to_be_unknown(
    uncommitted: int,
) -> None:
    """Nor where it has other entries at that index, which are not committed."""
    c = Cluster()
    c.begin()
    c.must_store()
    old, new = depose(c)
    session = answer_of(c, c.append(new, open_session=True))
    assert isinstance(session, AppendOutcome)
    if uncommitted:
        c.write(old, uncommitted)
        c.run_until(lambda: c.end_of(old) >= session.index, limit_ms=SOON_MS)
    assert c.process(old).replica.core.role is Role.LEADER
    assert (c.end_of(old) >= session.index) == bool(uncommitted)
    first = c.write(old, session=(session.index, 1))
    assert isinstance(answer_of(c, first), NotLeader)
    again = c.append(new, again=first.append, session=(session.index, 1))
    assert isinstance(answer_of(c, again), AppendOutcome)
    c.end()


def test_session_is_said_to_have_expired_once_that_is_committed() -> None:
    c = Cluster(max_sessions=1)
    leader = c.begin()
    session = c.open_session()
    evicting = c.append(leader, open_session=True)
    early = c.write(leader, session=(session, 1))
    assert isinstance(answer_of(c, early), SessionExpired)
    assert isinstance(evicting.answer, AppendOutcome), "not before the entry that evicts it is committed"
    late = c.write(leader, session=(session, 1))
    assert isinstance(answer_of(c, late), SessionExpired)
    c.end()


def test_session_that_never_was_is_unknown_once_leadership_is_confirmed() -> None:
    c = Cluster()
    leader = c.begin()
    c.must_store()
    c.isolate(leader)
    asked = c.write(leader, session=(1_000, 1))
    c.run_for(20)
    assert asked.answer is None, "another leader may have opened it"
    c.network.heal_all()
    assert isinstance(answer_of(c, asked), SessionExpired)
    c.end()


def test_conflict_is_told_once_what_it_conflicts_with_is_committed() -> None:
    """Two writers share a session. A deposed leader has the batch of one, the log that of the other."""
    c = Cluster()
    c.begin()
    session = c.open_session()
    old, new = depose(c)
    c.write(old, session=(session, 1))
    other = c.write(old, session=(session, 1))
    assert isinstance(answer_of(c, other), NotLeader)
    stored = c.append(new, again=other.append, session=(session, 1))
    assert isinstance(answer_of(c, stored), AppendOutcome)
    third = answer_of(c, c.write(new, session=(session, 1)))
    assert isinstance(third, DLedgerError) and third.code is Code.SESSION_CONFLICT
    c.end()
