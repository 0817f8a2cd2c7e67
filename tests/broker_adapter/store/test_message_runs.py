"""Runs of messages that are alike are dispatched at once, to the same effect as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from broker_adapter.log.replicated import EntryPiece
from broker_adapter.store.dispatcher import DispatchMetrics
from broker_adapter.store.dispatching import BatchDispatch
from broker_adapter.store.message_runs import RunFinder
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

KEYS = [("T", "k"), ("U", "k")]


def random_log(rng: Random) -> Log:
    """Bursts of messages that are alike, and all that may come between them."""
    log = Log(gap_every=rng.choice((0, 0, 3, 40)))
    for _ in range(rng.randint(1, 12)):
        topic, queue, tag = rng.choice("TU"), rng.randint(0, 2), rng.choice(("", "A", "Bb"))
        body, part = bytes(rng.choice((0, 4, 100))), rng.choice((0, 0, 0, 4, 8, 12))
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
            log.message(topic, queue, tag=tag, body=body, part=part)
    return log


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
    return look(node.dispatcher), node.dispatcher.figures(), node.metadata.applied


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
    assert list(run.parts()) == [(0, 0, 20), (1, 20, 40), (2, 40, 60)]


def test_messages_that_only_look_alike_are_not_searched_for_again_and_again() -> None:
    log = Log(gap_every=0)
    for number in range(200):
        log.message("T", unique=f"{number:032d}")
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
