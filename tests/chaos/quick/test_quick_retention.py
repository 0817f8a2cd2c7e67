"""What may be gone in the end, by what the run was configured to keep, and what is lost nevertheless."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from chaos.plans.scenario import Scenario
from chaos.quick.check import quick_check
from chaos.quick.trace import QuickReport
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import Clocks, TraceWriter

MS = 1_000_000
#: Each of three messages is sent so many ms after the run began, and the log's begin is told then.
SENT_MS, TOLD_MS = (0, 1000, 2000), 5000


def lost_with_master(folder: Path, role: str, *, lost_ms: int) -> QuickReport:
    """A message is sent at 1000 ms, answered, and read by nobody; a master is lost at `lost_ms`."""
    now = [0]
    clocks = Clocks(mono_ns=lambda: now[0])
    place = {"topic": "t", "q": 0}
    with TraceWriter(folder, "r", "client:p0", clocks=clocks) as writer:
        process = Process(writer, Numbers(0))
        for mid, sent_ms, qoff in ((1, 1000, 7), (2, 9000, 0)):
            now[0] = sent_ms * MS
            process.invoke("send", mid=mid, digest=f"{mid:016x}", **place)
            process.ok(qoff=qoff, **place)
    with TraceWriter(folder, "r", "client:drain", clocks=clocks) as writer:
        writer.write(Ev.META, {"e": "drain_target", "off": 0, **place})
        process = Process(writer, Numbers(9))
        process.invoke("drain", from_off=0, **place)
        process.delivered(0, 2, f"{2:016x}", qoff=0, **place)
        process.ok(count=1, next_off=1)
        writer.write(Ev.META, {"e": "drain_end"})
    lost_at = Clocks(mono_ns=lambda: lost_ms * MS)
    with TraceWriter(folder, "r", "nemesis", clocks=lost_at) as writer:
        about = {"nodes": 2, "seed": 1, "planned_faults": 1, "store": "classic", "broker_role": role}
        writer.write(Ev.META, {"e": "run_begin", **about})
        writer.write(Ev.META, {"e": "taken_over", "node": "n2", "member": "n1", "ended": 0, "size": 0})
    return quick_check(folder)


@pytest.mark.parametrize(
    ("role", "lost_ms", "lost", "left_behind"),
    [
        ("ASYNC_MASTER", 2000, 0, 1),
        ("SYNC_MASTER", 2000, 1, 0),
        ("ASYNC_MASTER", 500, 1, 0),
    ],
)
def test_what_a_master_took_along_is_lost_unless_it_had_promised_no_more(
    tmp_path: Path, role: str, lost_ms: int, lost: int, left_behind: int
) -> None:
    found = lost_with_master(tmp_path, role, lost_ms=lost_ms)
    assert (found.lost, found.left_behind) == (lost, left_behind), found.examples
    assert bool(found.reordered) is (lost > 0), "places are given again only by another master"


def report(folder: Path, *, begin: int, first_read: int, **kept: int) -> QuickReport:
    """Three messages at 10, 11, 12; the log begins at `begin`, and reads show those from `first_read` on."""
    now = [0]
    clocks = Clocks(mono_ns=lambda: now[0])
    about = {"nodes": 3, "seed": 1, "planned_faults": 0}
    with TraceWriter(folder, "r", "nemesis", clocks=clocks) as writer:
        writer.write(Ev.META, {"e": "run_begin", **about, **kept})
    with TraceWriter(folder, "r", "client:p0", clocks=clocks) as writer:
        process = Process(writer, Numbers(0))
        for mid, sent_ms in enumerate(SENT_MS, 1):
            now[0] = sent_ms * MS
            process.invoke("append", ledger="log", mid=mid, digest=f"{mid:016x}")
            process.ok(lidx=9 + mid)
    now[0] = TOLD_MS * MS
    with TraceWriter(folder, "r", "client:drain", clocks=clocks) as writer:
        writer.write(Ev.META, {"e": "drain_target", "ledger": "log", "off": 12})
        process = Process(writer, Numbers(9))
        process.invoke("min_off", ledger="log")
        process.ok(min_off=begin)
        process.invoke("drain", ledger="log", from_off=begin)
        for i, lidx in enumerate(range(first_read, 13)):
            process.delivered(i, lidx - 9, f"{lidx - 9:016x}", ledger="log", lidx=lidx)
        process.ok(count=13 - first_read)
        writer.write(Ev.META, {"e": "drain_end"})
    return quick_check(folder)


@pytest.mark.parametrize(
    ("kept", "begin", "first_read", "purged", "lost"),
    [
        ({"keep_ms": 5600}, 11, 11, 1, 0),
        ({"keep_bytes": 1}, 12, 12, 2, 0),
        ({"keep_ms": 5600, "keep_bytes": 1}, 12, 12, 2, 0),
        ({"keep_ms": 5600}, 12, 12, 1, 1),
        ({"keep_ms": 60_000}, 12, 12, 0, 2),
        ({}, 11, 11, 0, 1),
        # The log is said to begin where it did before, and yet something is not there.
        ({"keep_ms": 1}, 11, 12, 1, 1),
        ({"keep_bytes": 1}, 10, 11, 0, 1),
    ],
    ids=str,
)
def test_gone_is_what_retention_lets_go_and_everything_else_is_lost(
    tmp_path: Path, kept: dict[str, int], begin: int, first_read: int, purged: int, lost: int
) -> None:
    found = report(tmp_path, begin=begin, first_read=first_read, **kept)
    assert (found.purged, found.lost, found.is_good) == (purged, lost, lost == 0), found.examples


def scenario(**retention: object) -> Scenario:
    return Scenario.model_validate({"name": "r", "title": "r", "settings": {"retention": retention}})


def test_a_scenario_tells_what_it_lets_go() -> None:
    assert scenario().kept == {}
    assert scenario(max_age="5s", max_bytes=400_000).kept == {"keep_ms": 5000, "keep_bytes": 400_000}
    assert scenario(max_age="300ms").kept == {"keep_ms": 300}
    assert scenario(max_age="2m").kept == {"keep_ms": 120_000}


@pytest.mark.parametrize("retention", [{"max_age": "soon"}, {"max_age": 5}, {"min_free_bytes": 1}], ids=str)
def test_what_no_trace_can_tell_of_is_refused(retention: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"retention\.(max_age|min_free_bytes)"):
        scenario(**retention)


@pytest.mark.parametrize(("last_ms", "lost"), [(7_000, 0), (6_000, 1)])
def test_a_message_that_ages_out_between_the_final_read_and_a_slow_group_is_not_lost(
    tmp_path: Path, last_ms: int, lost: int
) -> None:
    """It is kept for 7.5 s, and cluster time may run ahead by 1.1 s."""
    now = [0]
    clocks = Clocks(mono_ns=lambda: now[0])
    place = {"topic": "t", "q": 0}
    with TraceWriter(tmp_path, "r", "nemesis", clocks=clocks) as writer:
        writer.write(
            Ev.META, {"e": "run_begin", "nodes": 3, "seed": 1, "planned_faults": 0, "keep_ms": 7_500}
        )
    with TraceWriter(tmp_path, "r", "client:p0", clocks=clocks) as writer:
        process = Process(writer, Numbers(0))
        process.invoke("send", mid=1, digest=f"{1:016x}", **place)
        process.ok(qoff=0, **place)
    with TraceWriter(tmp_path, "r", "client:drain", clocks=clocks) as writer:
        writer.write(Ev.META, {"e": "drain_target", "off": 0, **place})
        process = Process(writer, Numbers(9))
        process.invoke("drain", from_off=0, **place)
        process.delivered(0, 1, f"{1:016x}", qoff=0, **place)
        process.ok(count=1, next_off=1)
        writer.write(Ev.META, {"e": "drain_end"})
    with TraceWriter(tmp_path, "r", "client:g-0", clocks=clocks) as writer:
        about = {"group": "g", "consumer": "c", "topic": "t"}
        writer.write(Ev.MEMBER, {"e": "join", **about, "mode": "orderly", "filter": "*", "from_start": True})
        now[0] = last_ms * MS
        writer.write(Ev.MEMBER, {"e": "assign", **about, "epoch": 1, "q": 0, "off": 1})
    found = quick_check(tmp_path)
    assert found.lost == lost, found.examples


@pytest.mark.parametrize(
    ("committed", "kept", "lost", "left_behind"),
    [(6, {}, 0, 1), (7, {}, 1, 0), (6, {"last": 6}, 0, 1), (7, {"last": 6}, 1, 0), (6, {"last": 7}, 1, 0)],
)
def test_what_a_survivor_knew_to_be_committed_must_be_there(
    tmp_path: Path, committed: int, kept: dict[str, int], lost: int, left_behind: int
) -> None:
    with TraceWriter(tmp_path, "r", "nemesis", 1, clocks=Clocks(mono_ns=lambda: 2000 * MS)) as writer:
        about = {"node": "n1", "committed": committed, "ended": 9, "text": "new"}
        writer.write(Ev.META, {"e": "recovered", **about, **kept})
    found = lost_with_master(tmp_path, "SYNC_MASTER", lost_ms=500)
    assert (found.lost, found.left_behind) == (lost, left_behind), found.examples
