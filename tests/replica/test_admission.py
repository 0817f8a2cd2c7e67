"""Limits, sessions and waiters of appends, one replica alone: each limit is reached, with its number."""

from __future__ import annotations

import pytest

from dledger.core.sessions import RESULTS_KEPT, SessionTable
from dledger.core.values import ENTRY_HEADER_SIZE, Base, Tail
from dledger.errors import (
    Code,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    Overloaded,
    Refused,
    SessionExpired,
)
from dledger.replica.admission import AppendAdmission, AppendLimits
from dledger.replica.log_state import LogState
from dledger.replica.shell import AppendOutcome
from dledger.store.format.internal import ImageBegin, SessionBatch, StampedInternal, encode_internal
from dledger.store.image_files import ImageManifest, ImageMark, StoredImage
from tests.replica.replica_world import Host

# Each batch is reckoned to begin with an entry of the log's own: of a session, with a stamp.
_HEAD = ENTRY_HEADER_SIZE + len(encode_internal(StampedInternal(0, SessionBatch(0, 0, 0, 0))))

SMALL = AppendLimits(
    max_body_bytes=100,
    max_batch_bytes=400 + _HEAD,
    max_batch_entries=5,
    max_pending_bytes=600 + _HEAD,
    max_pending_appends=4,
    max_sessions=3,
)


def host_with(limits: AppendLimits = SMALL) -> Host:
    return Host("a", ["a"], limits=limits).lead_alone()


def open_session(host: Host, token: object = "open") -> int:
    host.append(token, open_session=True)
    host.disk()
    found = host.shell.appends[token]
    assert isinstance(found, AppendOutcome)
    return found.index


def code(answer: object) -> Code:
    assert isinstance(answer, DLedgerError), answer
    return answer.code


# -- limits (rule 13)


def test_rule_13_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    host = host_with()
    answer = host.append("too large", bytes(101))
    assert isinstance(answer, InvalidRequest) and answer.code is Code.BODY_TOO_LARGE
    assert host.append("just right", bytes(100)) is None
    assert host.replica.admission.limits_hit == {"max_body_bytes": 1}


@pytest.mark.parametrize(("sizes", "fits"), [([100, 100, 56], True), ([100, 100, 57], False)])
def test_rule_13_a_batch_may_be_as_large_as_the_limit_with_its_headers(sizes: list[int], fits: bool) -> None:
    host = host_with()
    assert sum(sizes) + 3 * ENTRY_HEADER_SIZE - 400 == (0 if fits else 1)
    answer = host.append("batch", *map(bytes, sizes))
    if fits:
        assert answer is None
    else:
        assert isinstance(answer, InvalidRequest) and answer.code is Code.BATCH_TOO_LARGE


def test_rule_13_the_entry_of_a_session_counts_towards_its_batch() -> None:
    host = host_with()
    session = open_session(host)
    bodies = [bytes(100), bytes(100), bytes(57)]
    assert code(host.append("too large", *bodies, session=(session, 1))) is Code.BATCH_TOO_LARGE
    assert host.append("just right", *bodies[:2], bytes(56), session=(session, 1)) is None
    assert host.replica.admission.pending_bytes == 400 + _HEAD


def test_rule_13_a_batch_has_a_greatest_number_of_entries() -> None:
    host = host_with()
    assert code(host.append("six", *[b""] * 6)) is Code.BATCH_TOO_LARGE
    assert host.append("five", *[b""] * 5) is None


def test_rule_13_pending_bytes_are_limited_and_given_back_with_the_commit() -> None:
    host = host_with()
    assert host.append(0, bytes(100), bytes(100)) is None
    assert host.append(1, bytes(100), bytes(100)) is None
    answer = host.append(2, bytes(1))
    assert isinstance(answer, Overloaded) and answer.code is Code.LEADER_PENDING_FULL
    assert host.replica.admission.limits_hit == {"max_pending_bytes": 1}
    host.disk()
    assert host.replica.admission.pending_bytes == 0
    assert host.append(3, bytes(1)) is None


def test_rule_13_the_number_of_those_who_wait_is_limited_repeats_included() -> None:
    host = host_with()
    session = open_session(host)
    assert host.append(1, b"x", session=(session, 1)) is None
    for i in range(3):
        assert host.append(("again", i), b"x", session=(session, 1)) is None
    answer = host.append("one more", b"x", session=(session, 1))
    assert isinstance(answer, Overloaded) and answer.code is Code.LEADER_PENDING_FULL
    assert host.replica.admission.limits_hit == {"max_pending_appends": 1}
    host.disk()
    assert all(
        isinstance(answer, AppendOutcome) and answer.index == session + 2
        for token, answer in host.shell.appends.items()
        if token not in ("open", "one more")
    )
    assert isinstance(host.append("now", b"x", session=(session, 1)), AppendOutcome)


def test_opening_sessions_is_limited_by_pending_appends_too() -> None:
    host = host_with()
    for i in range(4):
        assert host.append(i, open_session=True) is None
    assert code(host.append(4, open_session=True)) is Code.LEADER_PENDING_FULL


@pytest.mark.parametrize(
    ("bodies", "session", "open_", "expected"),
    [
        ([], None, False, Code.REQUEST_WITH_EMPTY_BODYS),
        ([], (0, 1), False, Code.REQUEST_WITH_EMPTY_BODYS),
        ([b"x"], None, True, Code.UNEXPECTED_ARGUMENT),
        ([], (0, 1), True, Code.UNEXPECTED_ARGUMENT),
        ([b"x"], (-1, 1), False, Code.UNEXPECTED_ARGUMENT),
        ([b"x"], (0, 0), False, Code.UNEXPECTED_ARGUMENT),
    ],
)
def test_requests_that_contradict_themselves_are_invalid(
    bodies: list[bytes], session: tuple[int, int] | None, open_: bool, expected: Code
) -> None:
    host = host_with()
    answer = host.append("bad", *bodies, session=session, open_session=open_)
    assert isinstance(answer, InvalidRequest) and answer.code is expected
    assert host.core.log.end_index == 0


def test_limits_above_what_a_data_file_holds_are_refused_at_start() -> None:
    with pytest.raises(AssertionError, match="max_batch_bytes"):
        Host("a", ["a"], limits=AppendLimits(max_batch_bytes=1 << 23))


# -- sessions


def test_a_retry_gets_the_first_result_once_that_is_committed() -> None:
    host = host_with()
    session = open_session(host)
    assert host.append("first", b"x", b"y", session=(session, 1)) is None
    assert host.append("retry", b"x", b"y", session=(session, 1)) is None
    host.disk()
    first, retry = host.shell.appends["first"], host.shell.appends["retry"]
    assert isinstance(first, AppendOutcome) and isinstance(retry, AppendOutcome)
    assert not first.duplicate and retry.duplicate
    assert (retry.index, retry.count, retry.term, retry.pos) == (
        first.index,
        first.count,
        first.term,
        first.pos,
    )
    assert host.append("late retry", b"x", b"y", session=(session, 1)) == retry
    assert [e.body for e in host.entries()].count(b"x") == 1


@pytest.mark.parametrize(
    ("seq", "bodies", "expected", "kind"),
    [
        (3, [b"z"], Code.SESSION_GAP, Refused),
        (1, [b"other"], Code.SESSION_CONFLICT, InvalidRequest),
        (1, [b"x", b"y"], Code.SESSION_CONFLICT, InvalidRequest),
    ],
)
def test_a_session_is_answered_with_what_is_wrong(
    seq: int, bodies: list[bytes], expected: Code, kind: type[DLedgerError]
) -> None:
    host = host_with()
    session = open_session(host)
    host.append(1, b"x", session=(session, 1))
    host.disk()
    answer = host.append("wrong", *bodies, session=(session, seq))
    assert isinstance(answer, kind) and answer.code is expected
    assert host.core.log.end_index == session + 2


def test_an_unknown_or_evicted_session_is_indeterminate() -> None:
    host = host_with()
    sessions = [open_session(host, ("open", i)) for i in range(3)]
    host.append("keeps it", b"x", session=(sessions[0], 1))
    host.disk()
    open_session(host, "one more")
    answer = host.append("evicted", b"x", session=(sessions[1], 1))
    assert isinstance(answer, SessionExpired) and isinstance(answer, Indeterminate)
    assert code(host.append("never was", b"x", session=(10_000, 1))) is Code.SESSION_EXPIRED
    assert host.append("kept", b"y", session=(sessions[0], 2)) is None


def test_an_eviction_that_is_not_committed_ends_no_session() -> None:
    host = host_with()
    sessions = [open_session(host, ("open", i)) for i in range(3)]
    assert host.append("evicts", open_session=True) is None
    assert host.append("waits", b"x", session=(sessions[0], 1)) is None
    assert host.append("in vain", b"x", session=(sessions[0], 1), timeout_ms=100) is None
    host.pass_time(100)
    assert code(host.shell.appends["in vain"]) is Code.WAIT_QUORUM_ACK_TIMEOUT
    assert "waits" not in host.shell.appends
    host.disk()
    assert code(host.shell.appends["waits"]) is Code.SESSION_EXPIRED


def test_a_session_may_have_so_many_batches_uncommitted() -> None:
    host = host_with(AppendLimits())
    session = open_session(host)
    for seq in range(1, RESULTS_KEPT + 1):
        assert host.append(seq, b"%d" % seq, session=(session, seq)) is None
    answer = host.append("too many", b"x", session=(session, RESULTS_KEPT + 1))
    assert isinstance(answer, Refused) and answer.code is Code.SESSION_WINDOW_FULL
    assert host.replica.admission.limits_hit == {"session_window": 1}
    host.disk()
    assert host.append("now", b"x", session=(session, RESULTS_KEPT + 1)) is None


def test_a_batch_whose_place_was_forgotten_is_known_to_be_stored() -> None:
    host = host_with(AppendLimits())
    session = open_session(host)
    for seq in range(1, RESULTS_KEPT + 2):
        host.append(seq, b"%d" % seq, session=(session, seq))
        host.disk()
    assert host.append("old", b"1", session=(session, 1)) == AppendOutcome(-1, 1, -1, -1, duplicate=True)
    kept = host.append("kept", b"2", session=(session, 2))
    assert isinstance(kept, AppendOutcome) and kept.index == session + 4


# -- deadlines


def test_a_deadline_answers_without_taking_the_entry_back() -> None:
    host = host_with()
    session = open_session(host)
    host.append("first", b"x", session=(session, 1), timeout_ms=100)
    host.append("retry", b"x", session=(session, 1), timeout_ms=50)
    host.append("patient", b"y", session=(session, 2), timeout_ms=1000)
    host.pass_time(49)
    assert set(host.shell.appends) == {"open"}
    host.pass_time(1)
    assert set(host.shell.appends) == {"open", "retry"}
    host.pass_time(50)
    answer = host.shell.appends["first"]
    assert isinstance(answer, Indeterminate) and answer.code is Code.WAIT_QUORUM_ACK_TIMEOUT
    assert host.replica.admission.pending_bytes > 0, "its bytes still wait"
    host.disk()
    assert host.replica.admission.pending_bytes == 0
    assert isinstance(host.shell.appends["patient"], AppendOutcome)
    again = host.append("again", b"x", session=(session, 1))
    assert isinstance(again, AppendOutcome) and again.duplicate


def test_an_image_that_is_not_committed_ends_no_session() -> None:
    """A node that began at a base takes its sessions from the image behind it. The entry that evicted a
    session lies before that image and, like the image, may yet be truncated on every node."""
    admission = AppendAdmission(SMALL, 4096)
    state = admission.state = LogState(max_sessions=SMALL.max_sessions)
    state.reset(Base(49, 1, 4096, 5))
    mark = ImageMark(50, 1, 9096)
    state.note(encode_internal(StampedInternal(1000, ImageBegin())), 50, 50, 1, mark.pos, 0)
    sessions = SessionTable(max_sessions=SMALL.max_sessions).encode_all()
    assert state.offer(StoredImage(ImageManifest(mark, len(sessions), 0, ()), sessions))
    end = mark.index
    admission.tail = Tail(end, 1, 9200, 7)
    assert not state.needs_image

    def retry(token: str, committed_index: int) -> AppendOutcome | DLedgerError | None:
        return admission.admit(
            token,
            [b"again"],
            session=(7, 3),
            open_session=False,
            deadline_ms=1000,
            term=2,
            committed_index=committed_index,
            now_ms=0,
            wall_ms=0,
        )

    assert retry("waits", 49) is None
    state.committed(end)
    ((token, answer),) = admission.committed(end)
    assert token == "waits" and code(answer) is Code.SESSION_EXPIRED
    assert code(retry("at once", end)) is Code.SESSION_EXPIRED
