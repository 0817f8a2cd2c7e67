"""The quick check and the Spark job share no code. What only one of them finds has a reason.

Run as a module to write the list of docs/checker.md anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.checker.judge import RunResult, Verdict
from chaos.checker.synthetic import Line
from chaos.quick.check import quick_check
from chaos.quick.trace import SHARE, QuickReport
from chaos.trace.schema import RAW_DIR, Ev

pytestmark = pytest.mark.xdist_group("spark")

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "checker.md"
#: Checks of Spark that find defects which the quick check does not find, and why.
ONLY_SPARK = {
    "it reads what clients wrote: no line of a node, of its files or of its syncs": (
        "A6 B1 B6 B7 B8 C10 D1 D2 D3 D4 D5 L3 L6c L6d P1 P2 P4 P7 P8 P10 R1 R2 R3 R4 R5 R6 R7 R8 R9 R10 R11 "
        "R12 R13 R15 R16 R17 R18 R19 R20 R21 S1 S3 S4 S5 S6 S11 S12"
    ),
    "it compares positions and contents: neither times, nor terms, nor ends that answers claim": (
        "A5 B2 B4 B9 L7 P3 S2 S10 S13"
    ),
    "it asks of groups whether all was processed, in which order, and whether an ack came back: no "
    "offsets, generations, attempts or filters of messages; of groups that left nothing": (
        "C1 C5 C6 C8 C9 C13 C14 C15 C16 C17 C18 C19 C20 C22 S9"
    ),
    "of reads it looks at the final ones, at those of groups and at what keys find; at no tag or key that is "
    "shown with a message, and not at what is found twice": ("L10 L13 L14"),
    "it knows nothing of hostile clients": "A7 A8 A9 A10",
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
        "clean_again",
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
    mutated: dict[str, tuple[Path, RunResult]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[QuickReport, RunResult]]:
    to = tmp_path_factory.mktemp("quick")
    found = {}
    for name, (folder, result) in mutated.items():
        as_the_harness_writes(folder, to / name)
        found[name] = quick_check(to / name), result
    return found


def test_both_find_nothing_in_good_runs(judged: dict[str, tuple[QuickReport, RunResult]]) -> None:
    good = ("True", "False", "kinds", "reset", "hostiles", "removed_by_size", "removed_by_age")
    for name in [f"clean_{one}" for one in good]:
        quick, spark = judged[name]
        assert quick.is_good and spark.verdict is Verdict.VALID, quick.examples


def test_what_only_spark_finds_has_a_reason(judged: dict[str, tuple[QuickReport, RunResult]]) -> None:
    found = {
        finding.check.id: name
        for name, (quick, spark) in judged.items()
        if not quick.broken
        for finding in spark.findings
        if finding.verdict is Verdict.INVALID
    }
    listed = [id_ for ids in ONLY_SPARK.values() for id_ in ids.split()]
    assert len(listed) == len(set(listed))
    assert {id_: name for id_, name in found.items() if id_ not in listed} == {}
    assert set(listed) <= set(found)


def test_what_only_the_quick_check_finds_has_a_reason(
    judged: dict[str, tuple[QuickReport, RunResult]],
) -> None:
    only = {
        name
        for name, (quick, spark) in judged.items()
        if quick.broken and spark.verdict is not Verdict.INVALID
    }
    assert only == {name for names in ONLY_QUICK.values() for name in names}


def test_both_find_what_clients_see(judged: dict[str, tuple[QuickReport, RunResult]]) -> None:
    both = [
        name for name, (quick, spark) in judged.items() if quick.broken and spark.verdict is Verdict.INVALID
    ]
    assert len(both) > 20


def rows() -> Iterator[str]:
    for why, ids in ONLY_SPARK.items():
        yield f"| Spark | {', '.join(ids.split())} | {why} |"
    for why, names in ONLY_QUICK.items():
        yield f"| quick check | {', '.join(name.replace('_', ' ') for name in names)} | {why} |"


def test_the_documentation_shows_the_list() -> None:
    lines = DOCUMENTATION.read_text().splitlines()
    assert [row for row in rows() if row not in lines] == []


if __name__ == "__main__":
    page = DOCUMENTATION.read_text()
    begin = page.index("| only | finds | because the other one |")
    end = page.index("\n\n", begin)
    table = ["| only | finds | because the other one |", "|---|---|---|", *rows()]
    DOCUMENTATION.write_text(page[:begin] + "\n".join(table) + page[end:])
