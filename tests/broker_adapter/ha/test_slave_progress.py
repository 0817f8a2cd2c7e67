"""What a slave may say, and where the log begins for it, by values."""

from __future__ import annotations

import pytest

from broker_adapter.errors import HaRefused, Status
from broker_adapter.log.classic.ha.connection import SlaveProgress, compare_tail, start_for
from broker_adapter.log.classic.ha.handshake import (
    MOST_TAIL_BYTES,
    TAIL_BYTES,
    HaIdentity,
    Introduction,
    LogRange,
    tail_begin,
    tail_digest,
)

LOG = LogRange(4096, 10_000, 4096)
LAST_FILE = 8192
SLAVE = HaIdentity("main", "a", 1)


def begun(first: int = 5000) -> SlaveProgress:
    progress = SlaveProgress(0.0)
    progress.report(first, 0.0, LOG, LAST_FILE)
    return progress


def refused(progress: SlaveProgress, offset: int) -> Status:
    with pytest.raises(HaRefused) as caught:
        progress.report(offset, 0.0, LOG, LAST_FILE)
    return caught.value.status


def test_a_slave_goes_on_where_it_is_and_has_what_it_says() -> None:
    progress = SlaveProgress(0.0)
    assert progress.start is None and progress.acked == -1
    assert progress.report(5000, 0.0, LOG, LAST_FILE)
    assert (progress.start, progress.sent, progress.acked) == (5000, 5000, 5000)
    progress.sent_frame(1000)
    assert not progress.report(5000, 0.0, LOG, LAST_FILE)
    assert progress.report(5500, 0.0, LOG, LAST_FILE) and progress.report(6000, 0.0, LOG, LAST_FILE)
    assert progress.acked == 6000


def test_a_slave_that_has_nothing_begins_with_the_last_file() -> None:
    progress = SlaveProgress(0.0)
    assert not progress.report(0, 0.0, LOG, LAST_FILE)
    assert (progress.start, progress.sent, progress.acked) == (LAST_FILE, LAST_FILE, 0)
    assert not progress.report(0, 0.0, LOG, LAST_FILE)
    progress.sent_frame(100)
    assert refused(progress, 1) is Status.HA_REPORT_REFUSED
    assert progress.report(LAST_FILE + 100, 0.0, LOG, LAST_FILE)


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 10_001, int.from_bytes(b"GET / HT"), (1 << 63) - 1])
def test_a_first_report_that_no_slave_of_this_master_gives(offset: int) -> None:
    assert refused(SlaveProgress(0.0), offset) is Status.HA_REPORT_REFUSED


@pytest.mark.parametrize("offset", [1, 4095])
def test_what_the_master_has_removed_is_not_sent(offset: int) -> None:
    assert refused(SlaveProgress(0.0), offset) is Status.HA_GAP


@pytest.mark.parametrize("offset", [5001, 4999, 0, -1, 1 << 62])
def test_a_report_of_what_was_never_sent_or_was_taken_back(offset: int) -> None:
    assert refused(begun(), offset) is Status.HA_REPORT_REFUSED


def test_reports_without_end() -> None:
    progress = begun()
    for _ in range(999):
        progress.report(5000, 0.0, LOG, LAST_FILE)
    assert refused(progress, 5000) is Status.HA_REPORT_REFUSED
    progress = begun()
    for second in range(10_000):  # a heartbeat each second goes on for ever
        progress.report(5000, float(second), LOG, LAST_FILE)
    progress = begun(4096)
    for number in range(5_000):  # as RocketMQ's slave does: a report for each frame
        progress.sent_frame(1)
        progress.report(4097 + number, 0.0, LOG, LAST_FILE)


def introduction(begin: int, end: int, *, file_size: int = 4096, whole_log: bool = False) -> Introduction:
    log = LogRange(begin, end, file_size)
    return Introduction(b"", SLAVE, log, tail_begin(log, -1), tail_digest(b"tail"), whole_log)


def test_where_the_log_begins_by_handshake() -> None:
    assert start_for(introduction(4096, 9000), LOG, LAST_FILE) == 9000
    assert start_for(introduction(4096, 10_000), LOG, LAST_FILE) == 10_000
    assert start_for(introduction(0, 0), LOG, LAST_FILE) == LAST_FILE
    assert start_for(introduction(0, 0, whole_log=True), LOG, LAST_FILE) == 4096
    assert start_for(introduction(8192, 8192), LOG, LAST_FILE) == 8192
    assert start_for(introduction(1024, 1024), LOG, LAST_FILE) == LAST_FILE


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (introduction(4096, 10_001), Status.HA_DIVERGED),
        (introduction(0, 4096), Status.HA_GAP),
        (introduction(0, 9000), Status.HA_GAP),
        (introduction(4096, 9000, file_size=8192), Status.HA_IDENTITY),
        (introduction(4096, 9000)._replace(tail_begin=9000), Status.HA_IDENTITY),
        (introduction(4096, 9000)._replace(tail_begin=4095), Status.HA_IDENTITY),
    ],
)
def test_slaves_that_cannot_go_on(said: Introduction, status: Status) -> None:
    with pytest.raises(HaRefused) as caught:
        start_for(said, LOG, LAST_FILE)
    assert caught.value.status is status


def test_the_ends_of_both_logs_are_compared() -> None:
    compare_tail(introduction(4096, 9000), tail_digest(b"tail"))
    with pytest.raises(HaRefused) as caught:
        compare_tail(introduction(4096, 9000), tail_digest(b"tall"))
    assert caught.value.status is Status.HA_DIVERGED


def test_no_slave_lets_its_master_read_all_of_a_log() -> None:
    end = 1 << 40
    whole = Introduction(b"", SLAVE, LogRange(0, end, 4096), 0, tail_digest(b""), True)
    with pytest.raises(HaRefused) as caught:
        start_for(whole, LogRange(0, end, 4096), 0)
    assert caught.value.status is Status.HA_IDENTITY
    most = whole._replace(tail_begin=end - MOST_TAIL_BYTES)
    assert start_for(most, LogRange(0, end, 4096), 0) == end


def test_a_tail_has_the_head_of_the_last_record() -> None:
    assert tail_begin(LogRange(0, 1 << 20, 1 << 30), 1 << 19) == 1 << 19
    assert tail_begin(LogRange(0, 1 << 20, 1 << 30), (1 << 20) - 100) == (1 << 20) - TAIL_BYTES
    assert tail_begin(LogRange(4096, 1 << 20, 1 << 30), -1) == (1 << 20) - TAIL_BYTES
    assert tail_begin(LogRange(0, 0, 1 << 30), -1) == 0
