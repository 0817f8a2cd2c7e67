"""Runs of messages that are alike are dispatched at once, to the same effect as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from broker_adapter.log.replicated import EntryPiece
from broker_adapter.store.consume_queues import Incarnation
from broker_adapter.store.dispatcher import DispatchMetrics
from broker_adapter.store.dispatching import DELIVERY_TOPIC, METADATA_TOPIC, BatchDispatch
from broker_adapter.store.message_runs import RunFinder
from broker_adapter.wire.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from dledger import EntryRun
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.store.helpers import (
    V6,
    Entry,
    Log,
    Node,
    as_stored,
    commands_of,
    dumb_look,
    look,
)

KEYS = [("T", "k"), ("U", "k"), ("T", "k1"), ("T", "1"), ("U", "0"), ("T", "é"), ("U", "0-1")]


def random_log(rng: Random) -> Log:
    """Bursts of messages that are alike, and all that may come between them."""
    log = Log(gap_every=rng.choice((0, 0, 3, 40)))
    for _ in range(rng.randint(1, 12)):
        topic, queue, tag = rng.choice("TU"), rng.randint(0, 2), rng.choice(("", "A", "Bb"))
        body, part = bytes(rng.choice((0, 4, 100))), rng.choice((0, 0, 0, 4, 8, 12))
        is_mixed = rng.random() < 0.3
        keys, unique = rng.choice(("", "", "k", "k%d", "%d é", "%d  k %d")), rng.choice(("", "%d-%d"))
        for _ in range(rng.choice((1, 2, 3, 15, 16, 17, 70))):
            match rng.randint(0, 200):
                case 0:
                    log.add(b"no record")
                case 1:
                    log.command(b"delete U")
                case 2:
                    log.message(topic, queue, tag=tag, body=body, keys="k")
                case 3:
                    log.message(topic, queue, tag=tag, body=body, host=V6)
                case 4:
                    log.add(log.entries[-1].body if log.entries else b"")
                case 5:
                    queue = rng.randint(0, 2)
            queue = rng.randint(0, 2) if is_mixed else queue
            values = [_filled(rng, text) for text in (keys, unique, "o%d")]
            log.message(
                topic, queue, tag=tag, body=body, part=part, keys=values[0], unique=values[1], other=values[2]
            )
    return log


def _filled(rng: Random, text: str) -> str:
    while "%d" in text:
        text = text.replace("%d", str(rng.randint(0, 2)), 1)
    return text


def pieces_of(entries: Sequence[Entry], rng: Random) -> list[EntryRun]:
    runs = []
    at = 0
    while at < len(entries):
        pieces: list[bytes | memoryview] = []
        for _ in range(rng.randint(1, 3)):
            end = at + rng.randint(1, len(entries))
            stored = as_stored(entries[at:end])
            if stored:
                pieces.append(rng.choice((bytes, memoryview))(stored))
            at = end
        runs.append(EntryRun(pieces))
    return runs


@pytest.mark.parametrize("seed", range(40))
def test_runs_lead_to_what_the_log_says(seed: int) -> None:
    rng = Random(seed)
    log = random_log(rng)
    node = Node(SimDisk())
    node.dispatcher.load(())
    for run in pieces_of(log.entries, rng):
        node.dispatcher.apply(run)
    one_by_one = Node(SimDisk())
    one_by_one.start(log.entries)
    assert look(node.dispatcher, KEYS) == dumb_look(log.entries, KEYS)
    assert node.metadata.applied == commands_of(log.entries)
    assert node.dispatcher.figures() == one_by_one.dispatcher.figures()
    assert node.dispatcher.index.snapshot().states == one_by_one.dispatcher.index.snapshot().states
    last = log.entries[-1]
    assert node.dispatcher.dispatched == (last.index, last.term, log.end_pos)


def uniform_log(count: int, queues: int = 1) -> Log:
    log = Log(gap_every=0)
    for number in range(count):
        log.message("T", number * queues // count, tag="A", body=b"1234")
    return log


def outcome(
    entries: Sequence[Entry], *, as_run: bool
) -> tuple[dict[str, object], DispatchMetrics, list[tuple[int, str]]]:
    node = Node(SimDisk())
    node.dispatcher.load(())
    node.dispatcher.apply(EntryRun([as_stored(entries)]) if as_run else entries)
    seen = look(node.dispatcher)
    seen["index"] = node.dispatcher.index.snapshot().states
    return seen, node.dispatcher.figures(), node.metadata.applied


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 17, 39])
def test_every_bit_of_one_record_of_a_run_may_be_wrong(at: int) -> None:
    entries = uniform_log(40).entries
    missing, foreign = set(), set()
    for byte in range(len(entries[at].body)):
        body = bytearray(entries[at].body)
        body[byte] ^= 1 << byte % 8
        changed = [*entries[:at], entries[at]._replace(body=bytes(body)), *entries[at + 1 :]]
        singly = outcome(changed, as_run=False)
        assert outcome(changed, as_run=True) == singly, byte
        missing.add(singly[1].set_aside.number > 0)
        foreign.add(singly[1].foreign_records)
    assert missing == {False, True} and foreign == {0, 1}, "neither foreign records nor gaps were tried"


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 40])
def test_every_byte_after_the_body_of_one_record_may_differ(at: int) -> None:
    """Keys and other values may differ within a run. What looks like a separator ends it."""
    log = Log(gap_every=0)
    for number in range(60):
        log.message(tag="A", keys=f"a{number:02d} b", unique=f"{number:02d}", other="é")
    entries = log.entries
    tail_at = 88 + len(b"body")
    for byte in range(tail_at, len(entries[at].body)):
        for value in (0x01, 0x02, 0x20, 0x31, 0x80, 0xC3):
            body = bytearray(entries[at].body)
            body[byte] = value
            changed = [*entries[:at], entries[at]._replace(body=bytes(body)), *entries[at + 1 :]]
            outcomes = [outcome(changed, as_run=as_run) for as_run in (False, True)]
            assert outcomes[0] == outcomes[1], (byte, value)


@pytest.mark.parametrize("keys", ["a{} b{}", "é{}", " {}  {} ", "{}\tb", "same", ""])
def test_keys_of_a_run_are_those_of_its_messages(keys: str) -> None:
    log = Log(gap_every=0)
    for number in range(100, 140):
        log.message("T", number % 4, keys=keys.format(number, number), unique=f"{number}")
    assert outcome(log.entries, as_run=True) == outcome(log.entries, as_run=False)


def test_equal_keys_that_are_not_ascii_are_in_the_index() -> None:
    """Such messages have equal tails, but the places of their keys are not known."""
    log = Log(gap_every=0)
    for _ in range(40):
        log.message("T", keys="é")
    assert outcome(log.entries, as_run=True) == outcome(log.entries, as_run=False)
    assert outcome(log.entries, as_run=True)[1].index_items == 40


def test_a_gap_within_a_run_is_filled() -> None:
    log = uniform_log(20)
    log.message("T", 0, tag="A", body=b"1234", offset=21)
    assert outcome(log.entries, as_run=True) == outcome(log.entries, as_run=False)
    seen, figures, _ = outcome(log.entries, as_run=True)
    assert seen["T@0"][:3] == (0, 22, 0) and figures.set_aside.number == 1  # type: ignore[index]


def test_alike_messages_are_one_run_whatever_queues_they_are_for() -> None:
    log = uniform_log(60, queues=3)
    stored = as_stored(log.entries)
    finder, size = RunFinder(EntryPiece(stored), 48), len(stored) // 60
    run = finder.find(0, size)
    assert run is not None and run.count == 60
    parts = [(queue_id, numbers.tolist()) for queue_id, numbers in run.parts()]
    assert parts == [(number, list(range(20 * number, 20 * number + 20))) for number in range(3)]


def test_a_run_ends_before_the_first_message_of_any_queue_that_is_out_of_order() -> None:
    log = Log(gap_every=0)
    for number in range(40):
        log.message("T", number % 3, unique=f"{number:04d}", offset=90 if number == 22 else None)
    assert outcome(log.entries, as_run=True) == outcome(log.entries, as_run=False)
    seen, figures, _ = outcome(log.entries, as_run=True)
    assert figures.set_aside.number == 1 and figures.index_items == 40
    assert {place: seen[place][1] for place in seen if "@" in place} == {"T@0": 14, "T@1": 96, "T@2": 13}  # type: ignore[index]


def test_messages_with_keys_of_equal_lengths_are_one_run() -> None:
    log = Log(gap_every=0)
    for number in range(40):
        log.message("T", keys=f"a{number:02d} b", unique=f"{number:032d}", other=f"é{number:02d}")
    stored = as_stored(log.entries)
    run = RunFinder(EntryPiece(stored), 48).find(0, len(stored) // 40)
    assert run is not None and run.count == 40 and run.keys is not None
    keys = [[row.tobytes().decode() for row in rows] for rows in run.keys]
    numbers = range(40)
    assert keys == [[f"{n:032d}" for n in numbers], [f"a{n:02d}" for n in numbers], ["b" for _ in numbers]]


def test_messages_that_only_look_alike_are_not_searched_for_again_and_again() -> None:
    log = Log(gap_every=0)
    for number in range(200):
        log.message("T", tag=f"{number:032d}")
    stored = as_stored(log.entries)
    finder, size = RunFinder(EntryPiece(stored), 48), len(stored) // 200
    assert [finder.find(number * size, size) for number in range(200)] == [None] * 200
    assert 1 <= finder.looks <= 3


def test_a_replay_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchDispatch, "_dispatch_piece", None)
    entries = uniform_log(5).entries
    node = Node(SimDisk())
    node.dispatcher.load(())
    node.dispatcher.apply(entries)
    image = b"".join(node.dispatcher.save())
    again = Node(SimDisk())
    again.dispatcher.load([image])
    again.dispatcher.replay(EntryRun([as_stored(entries)]))
    again.dispatcher.save()  # the replay is over
    assert look(again.dispatcher) == look(node.dispatcher)


@pytest.mark.parametrize("levels", [4, 1])
def test_delayed_messages_are_due_by_their_own_levels(levels: int) -> None:
    """The first of several levels is not valid, so its messages have no due time."""
    log = Log(gap_every=0)
    for number in range(40):
        log.message("SCHEDULE_TOPIC_XXXX", 2, delay=str(number % levels if levels > 1 else 3))
    assert outcome(log.entries, as_run=True) == outcome(log.entries, as_run=False)


def test_a_run_of_a_deleted_topic_stays_hidden_up_to_the_first_message_of_its_successor() -> None:
    log = Log(gap_every=0)
    for number in range(80):
        log.message("T", offset=number % 40)
    results = []
    for as_run in (False, True):
        node = Node(SimDisk())
        node.dispatcher.load(())
        node.dispatcher.hide_earlier([Incarnation("T", 0, log.entries[40].pos + 48)])
        node.dispatcher.apply(EntryRun([as_stored(log.entries)]) if as_run else log.entries)
        results.append((look(node.dispatcher), node.dispatcher.figures()))
    assert results[0] == results[1]
    assert results[0][0]["T@0"][:2] == (0, 40)  # type: ignore[index]


@pytest.mark.parametrize("at", [0, 20, 39])
def test_a_negative_queue_id_within_a_run_creates_no_queue(at: int) -> None:
    entries = uniform_log(40).entries
    body = bytearray(entries[at].body)
    body[12] |= 0x80  # the sign of the queue id
    entries[at] = entries[at]._replace(body=bytes(body))
    assert outcome(entries, as_run=True) == outcome(entries, as_run=False)
    assert not [place for place in outcome(entries, as_run=True)[0] if "@-" in place]


@pytest.mark.parametrize("at", [0, 20, 39])
@pytest.mark.parametrize("part", [TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
def test_a_message_of_a_transaction_within_a_run_is_dispatched_as_alone(at: int, part: int) -> None:
    """It differs from its neighbors in its flags alone."""
    entries = uniform_log(40).entries
    body = bytearray(entries[at].body)
    body[39] |= part  # the last byte of sys_flag
    entries[at] = entries[at]._replace(body=bytes(body))
    assert outcome(entries, as_run=True) == outcome(entries, as_run=False)
    is_readable = part == TRANSACTION_COMMIT
    assert outcome(entries, as_run=True)[1].set_aside.number == (not is_readable and at < 39)


@pytest.mark.parametrize("topic", [METADATA_TOPIC, DELIVERY_TOPIC])
def test_commands_that_are_alike_are_no_run(topic: str) -> None:
    log = Log(gap_every=0)
    for _ in range(40):
        log.message(topic, body=b"delete U", part=TRANSACTION_COMMIT)
    assert outcome(log.entries, as_run=True) == outcome(log.entries, as_run=False)
    assert not [place for place in outcome(log.entries, as_run=True)[0] if "@" in place]


def test_a_separator_within_a_value_ends_a_run() -> None:
    """Behind it is another property, here a tag."""
    log = Log(gap_every=0)
    for number in range(60):
        log.message(other=f"{number:02d}-TAGS-B")
    entries = log.entries
    body = entries[40].body.replace(b"-TAGS-B", b"\x02TAGS\x01B")
    assert body != entries[40].body
    entries[40] = entries[40]._replace(body=body)
    assert outcome(entries, as_run=True) == outcome(entries, as_run=False)
