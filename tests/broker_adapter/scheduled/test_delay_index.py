"""Delayed messages with an index on the disk are those of an obvious model, whatever becomes of its file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from broker_adapter.delivery_state import deferred_messages, image
from broker_adapter.delivery_state.commands import Carry, Defer, DeferredKind, Element, EndDeferred, Ending
from broker_adapter.delivery_state.deferred_messages import IndexMark, LogPosition
from broker_adapter.delivery_state.delay_index import FIRST_DUE, DelayedRow, RowEnd, RowPut
from broker_adapter.delivery_state.records import encode
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import StoredDataDamaged
from broker_adapter.scheduled import delay_file
from broker_adapter.scheduled.delay_file import SUFFIXES, DelayFile

DEFER = Defer(DeferredKind.DELAYED, "t", 0, 0, b"", "", "", 0, 0, 5, b"\x0a\0\0\1\0\0\0\5", "", b"body")
NEVER = 1 << 60


class Known(NamedTuple):
    """What the model has of a message."""

    due_ms: int
    place: LogPosition
    element: int
    topic: str


class Replica:
    """A state with its index, and the model of it. Commands are kept as the log has them."""

    def __init__(self, path: Path, batch: int = 5, *, watched: Callable[[], None] | None = None) -> None:
        self.path, self.batch = path, batch
        self.file = (
            WatchedFile(path, batch, watched) if watched else DelayFile(path, synchronous="OFF", batch=batch)
        )
        self.state = DeliveryState(index=self.file)
        self.model: dict[int, Known] = {}
        self.log: list[tuple[int, list[Element], str]] = []
        self.kept = self.checkpoint()
        self.kept_model, self.kept_log = dict(self.model), 0

    def checkpoint(self) -> bytes:
        saved, mark = image.checkpoint(self.state)
        self.state.sync_index()
        assert mark is not None
        self.mark = mark
        return saved

    def keep(self) -> None:
        self.kept, self.kept_model, self.kept_log = self.checkpoint(), dict(self.model), len(self.log)
        self.state.deferred.kept(self.mark)

    def take(self, index: int, elements: list[Element], cut_topic: str = "") -> None:
        self.log.append((index, elements, cut_topic))
        self.apply(self.log[-1])
        place = LogPosition(index * 1_000, 100 + index % 7)
        for at, element in enumerate(elements):
            number = (index << 16) + at
            match element:
                case Defer():
                    self.model[number] = Known(element.due_ms, place, at, element.topic)
                case Carry(deferred_id) if deferred_id in self.model:
                    was = self.model.pop(deferred_id)
                    self.model[deferred_id] = was._replace(place=place, element=at)
                case EndDeferred(deferred_id):
                    self.model.pop(deferred_id, None)
                case _:
                    pass
        self.model = {number: one for number, one in self.model.items() if one.topic != cut_topic}

    def apply(self, command: tuple[int, list[Element], str]) -> None:
        index, elements, cut_topic = command
        if cut_topic:
            self.state.topic_cut(cut_topic)
        else:
            self.state.apply(index, index, encode(elements), LogPosition(index * 1_000, 100 + index % 7))

    def start_again(self, path: Path | None = None) -> None:
        """As after a crash: from the checkpoint and the files, and then what the log has behind it."""
        self.file.close()
        self.file = DelayFile(path or self.path, synchronous="OFF", batch=self.batch)
        self.state = DeliveryState(index=self.file)
        image.restore(self.state, self.kept)
        check(self.state, self.kept_model)
        for command in self.log[self.kept_log :]:
            self.apply(command)


class WatchedFile(DelayFile):
    """Says each statement before SQLite carries it out."""

    def __init__(self, path: Path, batch: int, watched: Callable[[], None]) -> None:
        super().__init__(path, batch=batch)
        self._watched = watched

    def _connect(self):  # type: ignore[no-untyped-def]
        connection = super()._connect()
        connection.set_trace_callback(lambda _: self._watched())
        return connection


def found(state: DeliveryState) -> dict[int, Known]:
    return {
        number: Known(one.due_ms, one.place, one.element, one.topic) for number, one in state.deferred.items()
    }


def check(state: DeliveryState, model: dict[int, Known]) -> None:
    deferred = state.deferred
    assert found(state) == model
    assert deferred.in_log() == list(model), "the order of the log"
    assert len(deferred) == len(model)
    first = min((one.place.pos for one in model.values()), default=None)
    assert deferred.first_pos() == first or (first is not None and deferred.first_pos() <= first)  # type: ignore[operator]
    for topic in ("t", "u", "v"):
        assert deferred.is_awaited(topic) == any(one.topic == topic for one in model.values())
    rows, after = [], FIRST_DUE
    while after < (NEVER, -1):
        page, after = deferred.due_page(after, NEVER, 7)
        rows += [(row.due_ms, row.number) for row in sorted(page, key=lambda row: (row.due_ms, row.version))]
    assert sorted(rows) == sorted((one.due_ms, number) for number, one in model.items())
    assert [due for due, _ in rows] == sorted(due for due, _ in rows)
    deferred.clear_near()


def a_command(rng: Random, replica: Replica) -> tuple[list[Element], str]:
    if rng.random() < 0.03:
        return [], rng.choice("tuv")
    elements: list[Element] = []
    for _ in range(rng.randint(1, 3)):
        known = rng.choice([*replica.model, 7, 1 << 40])
        topic, due_ms = rng.choice("tuv"), rng.choice([5, rng.randrange(1 << 40)])
        elements.append(
            rng.choices(
                [
                    DEFER._replace(topic=topic, due_ms=due_ms),
                    Carry(known, DEFER),
                    EndDeferred(known, rng.choice([Ending.MOVED, Ending.RECALLED])),
                ],
                [5, 2, 4],
            )[0]
        )
    return elements, ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_as_a_model_through_checkpoints_restarts_and_images(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(deferred_messages, "_PAGE", rng.choice([3, 1_000]))
    replica = Replica(tmp_path / "a", rng.choice([1, 2, 9, 1_000]))
    memory = DeliveryState()
    for index in range(1, 250):
        elements, cut = a_command(rng, replica)
        replica.take(index, elements, cut)
        if cut:
            memory.topic_cut(cut)
        else:
            memory.apply(index, index, encode(elements), LogPosition(index * 1_000, 100 + index % 7))
        if rng.random() < 0.1:
            check(replica.state, replica.model)
        if rng.random() < 0.1:
            replica.keep()
        if rng.random() < 0.06:
            replica.start_again()
            check(replica.state, replica.model)
        if rng.random() < 0.03:
            saved = image.save(replica.state)
            assert saved == image.save(memory)
            image.load(replica.state, saved)  # as a node that is given the state of others
            check(replica.state, replica.model)
            replica.keep()
    assert replica.state.deferred.mark()[:2] == memory.deferred.mark()[:2]
    check(memory, replica.model)


def test_a_crash_at_each_statement_leaves_what_the_checkpoint_speaks_of(tmp_path: Path) -> None:
    """Files are copied as they are then, and taken with the checkpoint that there is."""
    copies: list[tuple[Path, bytes, dict[int, Known], list[tuple[int, list[Element], str]]]] = []
    replica: Replica | None = None

    def crash() -> None:
        if replica is None:
            return
        to = tmp_path / f"copy{len(copies)}"
        for suffix in SUFFIXES[:2]:
            if Path(f"{tmp_path / 'a'}{suffix}").exists():
                shutil.copy(f"{tmp_path / 'a'}{suffix}", f"{to}{suffix}")
        copies.append((to, replica.kept, dict(replica.kept_model), list(replica.log[replica.kept_log :])))

    replica = made = Replica(tmp_path / "a", 4, watched=crash)
    rng = Random(1)
    for index in range(1, 60):
        made.take(index, *a_command(rng, made))
        if index % 7 == 0:
            made.keep()
    assert len(copies) > 100
    for path, kept, model, behind in copies:
        made.path, made.kept, made.kept_model, made.kept_log = path, kept, model, 0
        made.log = behind
        made.start_again(path)
    check(made.state, made.model)


def test_a_power_failure_may_take_all_that_was_not_synced(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "a", 4)
    rng = Random(2)
    for index in range(1, 30):
        replica.take(index, *a_command(rng, replica))
    replica.keep()
    log = Path(f"{tmp_path / 'a'}-wal")
    before = log.read_bytes()
    for index in range(30, 60):
        replica.take(index, *a_command(rng, replica))
    after = log.read_bytes()
    for size in range(0, len(after), 1_111):
        path = tmp_path / f"cut{size}"
        shutil.copy(tmp_path / "a", path)
        # The log begins anew behind a sync: what was not synced is torn at any place.
        Path(f"{path}-wal").write_bytes(after[:size] + before[size:])
        replica.start_again(path)
        check(replica.state, replica.model)


def filled(path: Path) -> Replica:
    replica = Replica(path)
    for index in range(1, 200):
        replica.take(index, [DEFER._replace(topic="tuv"[index % 3], due_ms=index * 7)])
    replica.keep()
    replica.file.close()
    return replica


def test_a_file_that_is_not_that_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    replica = filled(tmp_path / "a")
    older, other = Replica(tmp_path / "older"), Replica(tmp_path / "other")
    for index in range(1, 100):
        older.take(index, [DEFER._replace(topic="tuv"[index % 3], due_ms=index * 7)])
    for index in range(1, 200):
        other.take(index, [DEFER._replace(topic="tuv"[index % 3], due_ms=index * 7 + (index == 5))])
    for one in (older, other):
        one.keep()
        one.file.close()
    (tmp_path / "none").mkdir()
    (tmp_path / "text").write_text("no database at all" * 1_000)
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for name in ("missing", "older", "other", "none", "text", "empty", "link"):
        state = DeliveryState(index=DelayFile(tmp_path / name))
        with pytest.raises((StoredDataDamaged, OSError)):
            image.restore(state, replica.kept)
    # And what follows then: the state that others have, or that of the whole log.
    for name in ("missing", "older", "other", "text", "empty", "link"):
        state = DeliveryState(index=DelayFile(tmp_path / name))
        with pytest.raises((StoredDataDamaged, OSError)):
            image.restore(state, replica.kept)
        state.clear()
        for index, elements, _ in replica.log:
            state.apply(index, index, encode(elements), LogPosition(index * 1_000, 100 + index % 7))
        check(state, replica.model)
        state.close()
    assert (tmp_path / "a").exists(), "a link is not followed"


def test_damage_of_any_page_is_found_or_does_no_harm(tmp_path: Path) -> None:
    replica = filled(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    outcomes = set()
    for at in range(0, len(data), 509):
        path = tmp_path / "damaged"
        path.write_bytes(data[:at] + bytes(byte ^ 0x5A for byte in data[at : at + 16]) + data[at + 16 :])
        state = DeliveryState(index=(file := DelayFile(path)))
        try:
            image.restore(state, replica.kept)
        except (StoredDataDamaged, OSError):
            outcomes.add("refused")
        else:
            assert found(state) == replica.model
            outcomes.add("right")
        file.wipe()
    assert "refused" in outcomes


def test_a_checkpoint_of_a_version_without_an_index_is_taken(tmp_path: Path) -> None:
    replica = filled(tmp_path / "a")
    memory = DeliveryState()
    for index, elements, _ in replica.log:
        memory.apply(index, index, encode(elements), LogPosition(index * 1_000, 100 + index % 7))
    state = DeliveryState(index=DelayFile(tmp_path / "b", batch=10))
    assert image.restore(state, image.save(memory)) is None
    check(state, replica.model)
    saved, mark = image.checkpoint(memory)
    assert mark is None and saved == image.save(memory)


def test_what_was_synced_is_in_the_file_itself(tmp_path: Path) -> None:
    """Not in the write-ahead log alone: a power failure may leave nothing of that."""
    row = DelayedRow(1, 1, 7, 100, 10, 0, "t", b"")
    file = DelayFile(tmp_path / "a")
    file.write([RowPut(row, 1)], [])
    file.sync()
    shutil.copy(tmp_path / "a", tmp_path / "b")
    other = DelayFile(tmp_path / "b", synchronous="OFF")
    other.cut(1)  # opens it
    assert other.find(1) == row
    assert file._connect().execute("PRAGMA synchronous").fetchone() == (1,), "NORMAL: it syncs both"
    for one in (file, other):
        one.close()


def test_what_somebody_else_keeps_from_being_synced_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint would speak of it: SQLite says only in a row that it did nothing."""
    file = DelayFile(tmp_path / "a")
    file.write([RowPut(DelayedRow(1, 1, 7, 100, 10, 0, "t", b""), 1)], [])
    busy = SimpleNamespace(
        execute=lambda statement: SimpleNamespace(fetchone=lambda: (1, -1, -1)), close=lambda: None
    )
    with monkeypatch.context() as patched:
        patched.setattr(file, "_connect", lambda: busy)
        with pytest.raises(OSError, match="in use by another process"):
            file.sync()
    file.close()


def test_a_write_ahead_log_that_has_grown_long_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody writes or reads at the end of each checkpoint, SQLite alone would never do it."""
    monkeypatch.setattr(delay_file, "_LOG_BYTES", 100_000)
    file, log = DelayFile(tmp_path / "a"), tmp_path / "a-wal"
    rows = [DelayedRow(number, number, 7, 100, 10, 0, "t", b"") for number in range(1, 4_000)]
    file.write([RowPut(rows[0], 1)], [])
    file.sync()
    assert 0 < log.stat().st_size < 100_000
    file.write([RowPut(row, row.number) for row in rows[1:]], [])
    with closing(file._connect()) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM delayed").fetchone() == (len(rows),)
        file.sync()
        assert log.stat().st_size > 100_000, "it waits for no reader"
        reader.execute("COMMIT")
    file.sync()
    assert log.stat().st_size > 100_000, "nothing was written"
    file.write([], [RowEnd(1, 4_000)])
    file.sync()
    assert log.stat().st_size == 0
    assert file.find(1) is None and file.find(2) == rows[1]
    file.close()


def test_a_wiped_index_leaves_no_write_ahead_log_without_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file of the same name would get its changes, if the wipe ends in between."""
    path = tmp_path / "a"
    file = DelayFile(path, synchronous="OFF")
    file.write([RowPut(DelayedRow(1, 1, 7, 100, 10, 0, "t", b""), 1)], [])
    left = DelayFile(path, synchronous="OFF")  # of a process that was killed: its files stay
    monkeypatch.setattr(left, "_close", lambda: None)
    unlink, gone = Path.unlink, list[str]()

    def noting(one: Path, missing_ok: bool = False) -> None:
        gone.append(one.name)
        unlink(one, missing_ok)

    monkeypatch.setattr(Path, "unlink", noting)
    left.wipe()
    file.close()
    assert len(gone) == 3 and gone[-1] == "a"


def test_a_node_without_delayed_messages_has_no_file(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "a", 1)
    for index in range(1, 20):
        replica.take(
            index, [DEFER._replace(kind=DeferredKind.HALF)] if index % 2 else [EndDeferred(7, Ending.MOVED)]
        )
    replica.keep()
    assert list(tmp_path.iterdir()) == []


def test_rows_that_ended_are_let_go_of_once_no_checkpoint_needs_them(tmp_path: Path) -> None:
    file = DelayFile(tmp_path / "a")
    rows = [DelayedRow(n << 16, n << 16, n, n, 1, 0, "t", b"") for n in range(10)]
    file.write([RowPut(row, n) for n, row in enumerate(rows)], [])
    file.write([], [RowEnd(n << 16, 10 + n) for n in range(8)])
    file.collect(13, 100)
    file.cut(13)
    assert [row.number >> 16 for row in file.in_order(-1, 100)] == [4, 5, 6, 7, 8, 9]
    file.cut(6)
    assert [row.number >> 16 for row in file.in_order(-1, 100)] == [4, 5, 6]
    assert file.find(4 << 16) == rows[4] and file.find(0) is None
    file.close()


def test_a_disk_that_fails_is_no_fault_of_an_entry(tmp_path: Path) -> None:
    """Else the command would be set aside, on this node alone."""
    (tmp_path / "a").mkdir()
    state = DeliveryState(index=DelayFile(tmp_path / "a", batch=1))
    with pytest.raises(OSError):
        state.apply(1, 1, encode([DEFER]), LogPosition(5, 5))


def test_what_is_marked_is_what_all_nodes_have(tmp_path: Path) -> None:
    """Whatever order it came in, and from which address, which an image does not tell."""
    one, other = DelayFile(tmp_path / "a"), DelayFile(tmp_path / "b")
    first, second = DeliveryState(index=one), DeliveryState(index=other)
    first.apply(1, 1, encode([DEFER, DEFER]), LogPosition(5, 5))
    image.load(second, image.save(first))
    assert second.mark_index()[:2] == first.mark_index()[:2] == IndexMark(2, first.deferred.checksum, 0)[:2]
    assert image.save(second) == image.save(first)
    first.apply(2, 1, encode([EndDeferred(1 << 16, Ending.MOVED)]))
    assert first.mark_index() != second.mark_index()


def test_what_is_due_soon_is_in_memory_until_it_ends(tmp_path: Path) -> None:
    """A row that is still there would be delivered again, and for one that is not the disk is asked."""
    state = DeliveryState(index=DelayFile(tmp_path / "a", synchronous="OFF"))
    for index in (1, 2):
        state.apply(index, index, encode([DEFER._replace(due_ms=5)]), LogPosition(index * 1_000, 5))
    state.write_index()
    deferred = state.deferred
    assert [row.number >> 16 for row in deferred.due_page(FIRST_DUE, 9, 100)[0]] == [1, 2]
    state.apply(
        3, 3, encode([EndDeferred(1 << 16, Ending.MOVED), DEFER._replace(due_ms=7)]), LogPosition(3_000, 5)
    )
    for _ in range(2):
        assert (1 << 16) not in deferred and (2 << 16) in deferred and ((3 << 16) + 1) in deferred
        assert all(deferred.is_in_memory(number) for number in (1 << 16, 2 << 16, (3 << 16) + 1))
        state.write_index()
    state.close()


def test_a_wipe_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that begins anew would find rows of the one before after a power failure."""
    file = DelayFile(tmp_path / "a")
    file.write([RowPut(DelayedRow(1, 1, 7, 100, 10, 0, "t", b""), 1)], [])
    synced: list[list[str]] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        synced.append([path.name for path in tmp_path.iterdir()])
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    file.wipe()
    assert synced == [[]]
