"""The quick check and the Spark job share no code. What only one of them finds has a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.checker.judge import CheckVerdict, RunJudgment
from chaos.quick.check import quick_check
from chaos.quick.trace import SHARE, QuickReport
from chaos.trace.schema import RAW_DIR, Ev
from tests.chaos.checker.synthetic import Line

pytestmark = pytest.mark.xdist_group("spark")

#: Checks of Spark that find defects which the quick check does not find, and why.
ONLY_SPARK = {
    "it reads what clients wrote: no line of a node, of its files or of its syncs": (
        "A6 B1 B6 B7 B8 B10 C10 D1 D2 D3 D4 D5 D6 D7 L3 L6c L6d P1 P2 P4 P7 P8 P10 R1 R2 R3 R4 R5 R6 R7 "
        "R8 R9 R10 R11 R12 R13 R15 R16 R17 R18 R19 R20 R21 R22 R23 R24 R25 R26 "
        "R27 R28 R29 R30 R31 R32 R33 S1 S3 S4 S5 S6 S11 S12"
    ),
    "it compares positions and contents: neither times, nor terms, nor ends that answers claim": (
        "A5 B2 B4 B9 L7 P3 S2 S10 S13"
    ),
    "it asks of groups whether all was processed, in which order, and whether an ack came back: no "
    "offsets, attempts or filters of messages, no locks of queues, no resets; of groups that left nothing": (
        "C1 C5 C6 C8 C9 C14 C15 C16 C17 C18 C19 C22 C24 C25 S9"
    ),
    "it uses final reads, reads of groups and look-ups by key; it ignores tags and keys of messages, "
    "messages found twice, and the position that a look-up returns": ("B3 L10 L13 L14"),
    "it knows nothing of hostile clients": "A7 A8 A9 A10",
    "it does not ask whether clients close": "A12",
    "what was removed excuses what a group was not given, also if it was removed only later": "L11",
}
#: Defects that only the quick check calls a broken promise, and why.
ONLY_QUICK = {
    "messages that a final read which is not whole does not show are *lost* to it; to Spark the run is "
    "unknown, because nobody has looked": ("the_drain_of_a_queue_is_missing", "the_final_read_begins_late"),
    "it looks for what a run promises where the harness writes it, and made-up traces have that elsewhere: "
    "to it what an asynchronous master took along is *lost*": (
        "the_end_of_a_log_is_lost_with_an_asynchronous_master",
    ),
    "clocks that contradict each other: the quick check relies on the order of lines; to Spark the order is "
    "unknown": ("positions_against_real_time",),
    "an id of a message in two sends: to it one message stands twice; to Spark the trace is wrong": (
        "an_id_is_used_twice",
    ),
    "a line that lacks what each of its kind says: to the quick check what it tells did not happen; to Spark "
    "it was not understood": ("a_member_does_not_say_of_which_group_it_was_through_with_a_message",),
    "what a member was through with is told by another writer than the member's: the quick check does not "
    "find it there; to Spark the trace contradicts itself": (
        "another_client_tells_what_a_consumer_was_through_with",
    ),
    "a group that did not ask to begin at the start (`from_start`): Spark does not want it to process what "
    "was sent before; the quick check does not know, so no run may have such a group": (
        "a_message_is_received_twice_for_the_first_time",
        "a_message_is_acknowledged_in_another_queue",
        "a_message_is_acknowledged_that_nobody_was_through_with",
        "a_member_gives_back_what_it_had_not_failed_at",
        "a_member_is_given_messages_and_has_not_joined",
        "members_of_a_group_consume_in_several_ways",
        "routes_name_an_old_master_on_a_busy_machine",
        "clean_again",
        "clean_late",
        "clean_one_by_one",
        "clean_receives",
        "the_rest_of_a_queue_is_given_with_reason",
    ),
}


def as_the_harness_writes(folder: Path, to: Path) -> None:
    """The same run, with the numbers of messages and the files that the quick check knows clients by."""
    files = {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((folder / RAW_DIR).glob("*.jsonl"))
    }
    numbers = {
        line["mid"]: int(name.removeprefix("client-p").partition(".")[0]) * SHARE + line["mid"]
        for name, lines in files.items()
        if name.startswith("client-p")
        for line in lines
        if line["ev"] in (Ev.OP, Ev.ITEM) and "mid" in line
    }
    drains = {
        line["op"]
        for name, lines in files.items()
        for line in lines
        if line.get("f") == "drain" or (line.get("f") == "min_off" and name.startswith("client-r"))
    }
    final: list[Line] = []
    (to / RAW_DIR).mkdir(parents=True)
    for name, lines in files.items():
        kept = []
        for line in lines:
            if "mid" in line:
                line["mid"] = numbers.get(line["mid"], 99 * SHARE + line["mid"])
            is_final = line.get("op") in drains or line.get("e") in ("drain_target", "drain_end")
            (final if is_final else kept).append(line)
        write(to / RAW_DIR / name.replace("admin.0", "nemesis.1"), kept)
    write(to / RAW_DIR / "client-drain.0.jsonl", sorted(final, key=lambda line: (line["mono"], line["seq"])))


def write(path: Path, lines: list[Line]) -> None:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


@pytest.fixture(scope="module")
def judged(
    mutated: dict[str, tuple[Path, RunJudgment]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[QuickReport, RunJudgment]]:
    to = tmp_path_factory.mktemp("quick")
    found = {}
    for name, (folder, result) in mutated.items():
        as_the_harness_writes(folder, to / name)
        found[name] = quick_check(to / name), result
    return found


@pytest.mark.slow
def test_both_find_nothing_in_good_runs(judged: dict[str, tuple[QuickReport, RunJudgment]]) -> None:
    good = ("True", "False", "kinds", "reset", "hostiles", "removed_by_size", "removed_by_age")
    for name in [f"clean_{one}" for one in good]:
        quick, spark = judged[name]
        assert quick.is_good and spark.verdict is CheckVerdict.VALID, quick.examples


def test_what_only_spark_finds_has_a_reason(judged: dict[str, tuple[QuickReport, RunJudgment]]) -> None:
    found = {
        finding.check.id: name
        for name, (quick, spark) in judged.items()
        if not quick.broken
        for finding in spark.findings
        if finding.verdict is CheckVerdict.INVALID
    }
    listed = [id_ for ids in ONLY_SPARK.values() for id_ in ids.split()]
    assert len(listed) == len(set(listed))
    assert {id_: name for id_, name in found.items() if id_ not in listed} == {}
    assert set(listed) <= set(found)


def test_what_only_the_quick_check_finds_has_a_reason(
    judged: dict[str, tuple[QuickReport, RunJudgment]],
) -> None:
    only = {
        name
        for name, (quick, spark) in judged.items()
        if quick.broken and spark.verdict is not CheckVerdict.INVALID
    }
    assert only == {name for names in ONLY_QUICK.values() for name in names}


def test_both_find_what_clients_see(judged: dict[str, tuple[QuickReport, RunJudgment]]) -> None:
    both = [
        name
        for name, (quick, spark) in judged.items()
        if quick.broken and spark.verdict is CheckVerdict.INVALID
    ]
    assert len(both) > 20
