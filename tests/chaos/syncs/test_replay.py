"""What counts as durable: told in journals of a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.syncs.journal import JournalDamaged, read_lines
from chaos.syncs.replay import Fact, FilesRemoved, Intervals, JournalReplay, LogSynced, VoteSynced

FIRST = "data/00000000000000000000"
SECOND = "data/00000000000000001000"
#: A first data file (inode 7), its name durable: 4 lines.
BEGIN = ["life 1 99 b", "listed 2", f"made 3 7 {FIRST}", "folder 3 4 data 3"]


def facts(folder: Path, *lives: list[str], damaged: Sequence[tuple[int, int]] = ()) -> list[Fact]:
    replay = JournalReplay(damaged)
    found: list[Fact] = []
    for number, lines in enumerate(lives):
        path = folder / f"{number}.log"
        path.write_text("".join(f"{line}\n" for line in lines))
        found += replay.life(read_lines(path))
    return sorted(found, key=lambda fact: fact.mono)


def synced(folder: Path, *lives: list[str], damaged: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    found = facts(folder, *lives, damaged=damaged)
    return [(fact.mono, fact.entry) for fact in found if isinstance(fact, LogSynced)]


def test_an_entry_is_durable_when_a_sync_of_its_file_has_returned(tmp_path: Path) -> None:
    lines = [*BEGIN, "write 10 7 0 200 0:1:0:100,100", "sync 11 20 7 5 -"]
    assert synced(tmp_path, lines) == [(20, 1)]


def test_without_a_sync_nothing_is(tmp_path: Path) -> None:
    assert synced(tmp_path, [*BEGIN, "write 10 7 0 200 0:1:0:100,100"]) == []


def test_a_sync_of_another_file_covers_nothing(tmp_path: Path) -> None:
    lines = [*BEGIN, "write 10 7 0 200 0:1:0:100,100", "sync 11 20 8 5 -"]
    assert synced(tmp_path, lines) == []


def test_what_is_written_while_a_sync_goes_on_is_not_covered_by_it(tmp_path: Path) -> None:
    lines = [*BEGIN, "write 10 7 0 100 0:1:0:100", "write 12 7 100 100 1:1:100:100", "sync 11 20 7 5 -"]
    assert synced(tmp_path, lines) == [(20, 0)]
    assert synced(tmp_path, [*lines, "sync 21 30 7 7 -"]) == [(20, 0), (30, 1)]


def test_a_write_that_had_not_returned_is_not_covered(tmp_path: Path) -> None:
    lines = [*BEGIN, "write 10 7 0 100 0:1:0:100", "write 10 7 100 100 1:1:100:100", "sync 11 20 7 6 6"]
    assert synced(tmp_path, lines) == [(20, 0)]


def test_a_sync_that_failed_covers_nothing_and_neither_does_the_next(tmp_path: Path) -> None:
    lines = [*BEGIN, "write 10 7 0 100 0:1:0:100", "unsynced 20 7", "sync 21 30 7 6 -"]
    assert synced(tmp_path, lines) == []


def test_a_name_that_no_sync_of_the_directory_covers_takes_its_file_along(tmp_path: Path) -> None:
    lines = [*BEGIN[:3], "write 10 7 0 100 0:1:0:100", "sync 11 20 7 4 -"]
    assert synced(tmp_path, lines) == []
    assert synced(tmp_path, [*lines, "folder 21 30 . 5"]) == []
    assert synced(tmp_path, [*lines, "folder 21 30 data 2"]) == [], "it began before the name was given"
    assert synced(tmp_path, [*lines, "folder 21 30 data 5"]) == [(30, 0)]


def test_what_is_written_again_is_not_durable_before_the_next_sync(tmp_path: Path) -> None:
    lines = [*BEGIN, "write 10 7 0 300 0:1:0:100,100,100", "sync 11 20 7 5 -"]
    again = [*lines, "cut 30 7 100", "write 31 7 100 100 1:2:100:100"]
    assert synced(tmp_path, again) == [(20, 2), (30, 0)]
    assert synced(tmp_path, [*again, "sync 32 40 7 8 -"]) == [(20, 2), (30, 0), (40, 1)]
    over = [*lines, "write 31 7 100 100 1:2:100:100"]
    assert synced(tmp_path, over) == [(20, 2), (31, 0)]


def test_a_write_that_was_cut_short_goes_on_in_the_next(tmp_path: Path) -> None:
    short = [*BEGIN, "write 10 7 0 200 0:1:0:100,100", "wrote 5 150"]
    assert synced(tmp_path, [*short, "sync 11 20 7 6 -"]) == [(20, 0)]
    assert synced(tmp_path, [*short, "write 11 7 150 50 -", "sync 12 20 7 7 -"]) == [(20, 1)]


def test_what_a_killed_process_wrote_is_covered_by_a_sync_of_the_next(tmp_path: Path) -> None:
    first = [*BEGIN, "write 10 7 0 100 0:1:0:100"]
    second = ["life 30 98 b", f"has 7 1000 {FIRST}", "listed 31", "sync 32 40 7 3 -"]
    assert synced(tmp_path, first, second) == [(40, 0)]


def test_what_a_loss_of_power_took_no_later_sync_covers(tmp_path: Path) -> None:
    first = [*BEGIN, "write 10 7 0 200 0:1:0:100,100"]
    second = ["life 30 98 b", f"has 7 1000 {FIRST}", "listed 31", "sync 32 40 7 3 -"]
    assert synced(tmp_path, first, ["undone 20 7 150 50"], second) == [(40, 0)]
    again = [*second, "write 41 7 100 100 1:2:100:100", "sync 42 50 7 5 -"]
    assert synced(tmp_path, first, ["undone 20 7 150 50"], again) == [(40, 0), (50, 1)]


def test_a_killed_process_leaves_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"life 1 99 b\nlisted 2\nwrite 3 7" + bytes(100))
    assert [line.what for line in read_lines(path)] == ["life", "listed"]


@pytest.mark.parametrize("text", ["sync 1", "gossip 1 2", "", "write 10 seven 0 200 -", "wrote 1 x"])
def test_a_line_that_no_recorder_writes_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(JournalDamaged):
        facts(tmp_path, [*BEGIN, text])


def test_files_that_were_moved_away_hold_nothing_any_more(tmp_path: Path) -> None:
    first = [*BEGIN, "write 10 7 0 100 0:1:0:100", "sync 11 20 7 5 -"]
    assert synced(tmp_path, first, ["life 30 98 b", "listed 31"]) == [(20, 0), (31, -1)]
    # The new file has the same name, and nothing of it is durable.
    again = ["life 30 98 b", "listed 31", f"made 32 8 {FIRST}", "write 33 8 0 100 0:1:0:100"]
    named = [*again, "sync 34 40 8 4 -", "folder 41 50 data 5"]
    assert synced(tmp_path, first, named) == [(20, 0), (31, -1), (50, 0)]


def test_the_log_goes_on_in_the_next_file(tmp_path: Path) -> None:
    two = [*BEGIN, f"made 5 8 {SECOND}", "folder 6 7 data 5", "write 10 7 0 100 0:1:0:100"]
    rest = [*two, "write 11 8 0 100 1:1:0:100"]
    assert synced(tmp_path, [*rest, "sync 12 20 8 8 -"]) == [], "entry 0 is not durable"
    assert synced(tmp_path, [*rest, "sync 12 20 8 8 -", "sync 21 30 7 9 -"]) == [(30, 1)]


def test_a_begin_that_is_purged_takes_nothing_from_what_follows(tmp_path: Path) -> None:
    two = [*BEGIN, f"made 5 8 {SECOND}", "folder 6 7 data 5", "write 10 7 0 100 0:1:0:100"]
    both = [*two, "write 11 8 0 100 1:1:0:100", "sync 12 20 8 8 -", "sync 21 30 7 9 -"]
    assert synced(tmp_path, [*both, f"gone 40 {FIRST}"]) == [(30, 1)]
    assert synced(tmp_path, [*both, f"gone 40 {SECOND}"]) == [(30, 1), (40, 0)]
    assert synced(tmp_path, [*both, f"gone 40 {FIRST}", f"gone 41 {SECOND}"]) == [(30, 1), (41, -1)]


def test_a_copy_that_takes_the_place_of_a_file_has_to_be_durable_itself(tmp_path: Path) -> None:
    old = [*BEGIN, "write 10 7 0 100 0:1:0:100", "sync 11 20 7 5 -"]
    copied = [*old, f"made 30 8 {FIRST}.tmp", "write 31 8 0 100 0:1:0:100"]
    whole = [*copied, "sync 32 40 8 8 -", f"name 41 8 {FIRST}.tmp {FIRST}", "folder 42 50 data 10"]
    assert synced(tmp_path, whole) == [(20, 0)]
    assert synced(tmp_path, [*copied, f"name 41 8 {FIRST}.tmp {FIRST}"]) == [(20, 0), (41, -1)]


@pytest.mark.parametrize("copied", ["0:1:0:100;2:1:200:100", "0:1:0:100;900:1:100:100;2:1:200:100"])
def test_a_copy_takes_damaged_entries_along_which_the_harness_says_it_damaged(
    tmp_path: Path, copied: str
) -> None:
    lines = [*BEGIN, "write 10 7 0 300 0:1:0:100,100,100", "sync 11 20 7 5 -", f"made 30 8 {FIRST}.tmp"]
    lines += [f"write 31 8 0 300 {copied}", "sync 32 40 8 8 -"]
    lines += [f"name 41 8 {FIRST}.tmp {FIRST}", "folder 42 50 data 10"]
    assert synced(tmp_path, lines) == [(20, 2), (41, 0)], "nobody had damaged it"
    assert synced(tmp_path, lines, damaged=[(100, 200)]) == [(20, 2)]
    assert synced(tmp_path, lines, damaged=[(200, 300)]) == [(20, 2), (41, 0)], "another was damaged"
    unsynced = [line for line in lines if not line.startswith("sync 32")]
    assert synced(tmp_path, unsynced, damaged=[(100, 200)]) == [(20, 2), (41, -1)]


def test_what_may_have_been_written_unseen_is_never_durable(tmp_path: Path) -> None:
    lines = [*BEGIN, "write 10 7 0 100 0:1:0:100", "sync 11 20 7 5 -", "odd 30 7"]
    assert synced(tmp_path, [*lines, "sync 31 40 7 7 -"]) == [(20, 0), (30, -1)]


def test_term_and_vote_are_durable_with_their_file_and_its_name(tmp_path: Path) -> None:
    def votes(*lines: str) -> list[tuple[int, int, str]]:
        found = facts(tmp_path, ["life 1 99 b", "listed 2", *lines])
        return [(f.mono, f.term, f.vote) for f in found if isinstance(f, VoteSynced)]

    text = b"currTerm=5\nvoteLeader=n2\n".hex()
    made = ["made 3 9 currterm.tmp", f"write 4 9 0 25 ={text}"]
    named = ["name 7 9 currterm.tmp currterm", "folder 8 9 . 6"]
    assert votes(*made, "sync 5 6 9 4 -", *named) == [(9, 5, "n2")]
    assert votes(*made, "sync 5 6 9 4 -", named[0]) == [], "its name is not"
    assert votes(*made, named[0], "folder 8 9 . 5") == [], "its content is not"
    assert votes(*made, named[0], "folder 8 9 . 5", "sync 10 11 9 6 -") == [(11, 5, "n2")]


def test_intervals_agree_with_a_set_of_numbers() -> None:
    from random import Random

    rng = Random(7)
    for _ in range(200):
        intervals, numbers = Intervals(), set[int]()
        for _ in range(20):
            begin = rng.randrange(30)
            end = begin + rng.randrange(8)
            if rng.random() < 0.6:
                intervals.add(begin, end)
                numbers |= set(range(begin, end))
            else:
                intervals.remove(begin, end)
                numbers -= set(range(begin, end))
            assert {n for a, b in intervals for n in range(a, b)} == numbers
            assert all(b < c for (_, b), (c, _) in zip(list(intervals), list(intervals)[1:], strict=False))
            begin = rng.randrange(30)
            assert intervals.cover(begin, begin + 3) == ({begin, begin + 1, begin + 2} <= numbers)


def removed(folder: Path, *lives: list[str]) -> list[tuple[int, int, int]]:
    return [
        (fact.mono, fact.entry, fact.kept) for fact in facts(folder, *lives) if isinstance(fact, FilesRemoved)
    ]


#: Two files of a log: entries 0 and 1 fill the first one, 2 and 3 are 300 bytes in the second one.
TWO_FILES = [
    *BEGIN,
    "write 10 7 0 1000 0:1:0:500,500",
    f"made 11 8 {SECOND}",
    "write 12 8 0 300 2:1:0:100,200",
]


def test_a_log_whose_first_file_goes_begins_later_and_keeps_what_is_behind_it(tmp_path: Path) -> None:
    assert removed(tmp_path, TWO_FILES) == []
    assert removed(tmp_path, [*TWO_FILES, f"gone 20 {FIRST}"]) == [(20, 1, 300)]


def test_what_is_written_later_was_not_behind_it(tmp_path: Path) -> None:
    lines = [*TWO_FILES, f"gone 20 {FIRST}", "write 30 8 300 100 4:1:300:100"]
    assert removed(tmp_path, lines) == [(20, 1, 300)]


def test_a_log_that_loses_its_end_begins_where_it_did(tmp_path: Path) -> None:
    assert removed(tmp_path, [*TWO_FILES, f"gone 20 {SECOND}"]) == []


def test_a_log_that_is_begun_anew_at_the_same_place_has_lost_nothing(tmp_path: Path) -> None:
    again = [f"made 22 9 {FIRST}", "write 23 9 0 100 0:2:0:100"]
    assert removed(tmp_path, [*TWO_FILES, f"gone 20 {SECOND}", f"gone 21 {FIRST}", *again]) == []


def test_a_log_that_is_begun_anew_further_on_lacks_all_before(tmp_path: Path) -> None:
    again = [f"made 22 9 {SECOND}", "write 23 9 0 100 7:2:0:100"]
    assert removed(tmp_path, [*TWO_FILES, f"gone 20 {SECOND}", f"gone 21 {FIRST}", *again]) == [(23, 6, 100)]


def test_a_file_that_was_removed_between_two_lives_is_missed(tmp_path: Path) -> None:
    second = ["life 40 99 b", f"has 8 300 {SECOND}", "listed 41"]
    assert removed(tmp_path, TWO_FILES, second) == [(41, 1, 300)]
