"""No committed entry ends a node, whatever its bytes, and all nodes make the same of it."""

from __future__ import annotations

import struct
from random import Random

import pytest
from zlib_ng.zlib_ng import crc32

from broker_adapter.delivery_state.records import encode as encode_delivery
from broker_adapter.metadata.records import encode as encode_metadata
from broker_adapter.server.replicated_state import ReplicatedState
from dledger import EntryRun, ImageRefused
from tests.broker_adapter.store.helpers import Log, as_stored, look
from tests.broker_adapter.store.poison import (
    KEYS,
    NUMBERS,
    Replica,
    batches,
    delivery_elements,
    good_entry,
    metadata_commands,
    mutated,
    poisoned_log,
    wild_command,
)


# 3 and 10 fill a long gap of a queue in, which takes most of the time.
@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, 1, 2, 5, *(pytest.param(seed, marks=pytest.mark.long) for seed in (3, 4, *range(6, 12)))]
)
def test_all_nodes_make_the_same_of_entries_with_any_bytes(seed: int) -> None:
    rng = Random(seed)
    log = poisoned_log(rng, 150)
    singly, in_runs, restarted = Replica(), Replica(), Replica()
    for replica in (singly, in_runs, restarted):
        replica.start()
    for batch in batches(log.entries, rng):
        singly.dispatcher.apply(batch)
        in_runs.dispatcher.apply(EntryRun([as_stored(batch)]))  # type: ignore[arg-type]
        if rng.random() < 0.2:
            restarted.dispatcher.close()
            restarted = Replica(restarted.disk)
            restarted.start()
        restarted.dispatcher.apply(batch)
    image = singly.image()
    assert image == in_runs.image() == restarted.image()
    assert look(singly.dispatcher, KEYS) == look(in_runs.dispatcher, KEYS) == look(restarted.dispatcher, KEYS)
    assert singly.dispatcher.figures().set_aside == in_runs.dispatcher.figures().set_aside
    again = Replica()
    again.dispatcher.load([image])
    again.dispatcher.replay(log.entries)
    assert again.image() == image, "what is saved can be loaded"


@pytest.mark.parametrize("seed", range(6))
def test_messages_after_poison_are_in_their_queues(seed: int) -> None:
    rng = Random(seed)
    log = poisoned_log(rng, 60)
    replica = Replica()
    replica.start()
    replica.dispatcher.apply(log.entries)
    log.next_offsets.update(replica.dispatcher.queues.next_offsets())
    for queue_id in range(3):
        message = log.message("T", queue_id)
        replica.dispatcher.apply([message])
        queue = replica.dispatcher.queues.get("T", queue_id)
        assert queue is not None
        assert queue.read(queue.max_offset - 1, 1)[0].physical_offset == message.pos + 48


@pytest.mark.parametrize("seed", range(3))
def test_an_image_with_any_bytes_is_loaded_or_refused(seed: int) -> None:
    """With the sums of both frames put right: else nothing behind them is reached."""
    rng = Random(seed)
    source = Replica()
    source.start()
    log = Log()
    for command in metadata_commands()[:6]:
        log.command(encode_metadata(command))
    for _ in range(40):
        good_entry(log, rng, source.delivery)
    source.dispatcher.apply(log.entries)
    image = source.image()
    refused = 0
    for _ in range(300):
        replica = Replica()
        try:
            replica.dispatcher.load([with_sums(image, rng)])
            replica.image()
            replica.dispatcher.apply([log.message("T", 1)])
        except ImageRefused:
            refused += 1
            replica.dispatcher.load([image])
            assert replica.image() == image
    assert 0 < refused < 300


def with_sums(image: bytes, rng: Random) -> bytes:
    magic, version, text_size, _ = struct.unpack_from(">4sIQQ", image)
    text, state = image[28 : 28 + text_size], image[28 + text_size :]
    metadata_length = struct.unpack_from(">4sBQ", state)[2]
    parts = [state[13 : 13 + metadata_length], state[13 + metadata_length :]]
    which = rng.randrange(3)
    if which == 2:
        text = mutated(text, rng)
    else:
        head, payload = parts[which][:9], mutated(parts[which][9:], rng)
        parts[which] = head[:5] + crc32(payload).to_bytes(4) + payload
    state = state[:5] + len(parts[0]).to_bytes(8) + parts[0] + parts[1]
    head = struct.pack(">4sIQQ", magic, version, len(text), len(state))
    return head + crc32(state, crc32(text, crc32(head))).to_bytes(4) + text + state


@pytest.mark.parametrize("seed", range(6))
def test_a_state_takes_commands_with_any_bytes_and_can_be_saved_and_loaded(seed: int) -> None:
    rng = Random(seed)
    replica, again = Replica(), Replica()
    state = replica.delivery
    for command in metadata_commands()[:3]:
        replica.metadata.apply(replica.metadata.applied_index + 1, encode_metadata(command))
    for index in range(3, 1500):
        stamp_ms = rng.choice(NUMBERS) if rng.random() < 0.05 else 10**12 + index
        if rng.random() < 0.3:
            body = encode_metadata(rng.choice(metadata_commands()[:6]))
            replica.metadata.apply(index, mutated(body, rng) if rng.random() < 0.5 else body)
        else:
            elements = delivery_elements(rng, state)
            body = wild_command(rng, state) if rng.random() < 0.3 else encode_delivery(elements)
            state.apply(index, stamp_ms, mutated(body, rng) if rng.random() < 0.5 else body)
        if index % 50 == 0:
            saved = ReplicatedState(replica.metadata, state).save()
            ReplicatedState(again.metadata, again.delivery).load(saved)
            assert ReplicatedState(again.metadata, again.delivery).save() == saved
    assert state.damaged > 100 and state.unknown > 1 and state.pending_count and state.deferred
    assert replica.metadata.damaged > 20 and replica.metadata.refused > 20
