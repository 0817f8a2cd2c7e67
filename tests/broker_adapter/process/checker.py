"""What has to be true of every run, found out from the files of stopped nodes and the clients' notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from broker_adapter.metadata.commands import RESERVED_PREFIX
from broker_adapter.wire.consume_queue_unit import UNIT_SIZE, encode_unit
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit as Unit
from broker_adapter.wire.java_hash import tag_code
from broker_adapter.wire.message import decode
from broker_adapter.wire.message_id import parse_offset_id
from broker_adapter.wire.properties import TAGS, split_properties
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.store.format.batch import MAGIC_NORMAL, DecodedEntry
from tests.broker_adapter.process.load import Load, Notes, TopicQueue
from tests.broker_adapter.process.processes import BrokerProcesses


class Stored(NamedTuple):
    """A message as the log has it."""

    physical_offset: int
    size: int
    tag: str
    body: bytes


#: Of each queue: queue offset -> message, in the order of the log.
Queues = dict[TopicQueue, dict[int, Stored]]


async def check(brokers: BrokerProcesses, load: Load, *, may_raise: Sequence[str] = ()) -> dict[str, Queues]:
    """Kills the nodes once they are in step, and compares everything. What each node's log has of queues.

    `may_raise`: in these nodes something unexpected was made to happen.
    """
    end = await stop(brokers)
    for node in set(brokers.nodes.members) - set(may_raise):
        assert "Traceback" not in brokers.nodes.log_of(node), f"something unexpected was raised in {node}"
    return check_files(brokers, load.notes, end)


async def stop(brokers: BrokerProcesses) -> int:
    """Kill the nodes once they are in step. Where the committed log ends."""
    await brokers.in_step()
    statuses = await brokers.nodes.wait_for(lambda seen: seen if len(seen) == 3 else None)
    await brokers.nodes.kill(*brokers.nodes.members)
    return min(status.committed_pos for status in statuses.values())


def check_files(brokers: BrokerProcesses, notes: Notes, end: int) -> dict[str, Queues]:
    nodes = brokers.nodes
    begin = max(nodes.data_begin(node) for node in nodes.members)
    first, *others = [nodes.data_bytes(node, begin, end) for node in nodes.members]
    assert len(first) == end - begin
    assert all(other == first for other in others), "data files differ below the committed end"
    found = {}
    for node in nodes.members:
        queues = found[node] = queues_of(nodes.stored_entries(node))
        _check_acknowledged(node, queues, notes)
        _check_order(queues, notes)
        _check_consume_queues(brokers.derived(node) / "consumequeue", queues)
    _check_deliveries(next(iter(found.values())), notes)
    return found


def queues_of(entries: Sequence[DecodedEntry]) -> Queues:
    """The oracle: every message of the log at its place. Offsets are dense; records know where they are."""
    queues: Queues = {}
    for entry in entries:
        if entry.magic != MAGIC_NORMAL:
            continue
        message = decode(entry.body)
        assert message.physical_offset == entry.pos + ENTRY_HEADER_SIZE
        if message.topic.startswith(RESERVED_PREFIX):
            continue  # commands, which are in no queue
        queue = queues.setdefault((message.topic, message.queue_id), {})
        if queue:
            assert message.queue_offset == next(reversed(queue)) + 1, "queue offsets are dense"
        tag = split_properties(message.properties).get(TAGS, "")
        queue[message.queue_offset] = Stored(message.physical_offset, len(entry.body), tag, message.body)
    return queues


def _check_acknowledged(node: str, queues: Queues, notes: Notes) -> None:
    kept = lost = 0
    for (topic, queue_id, offset), expected in notes.acknowledged.items():
        queue = queues.get((topic, queue_id), {})
        if queue and offset < next(iter(queue)):
            continue  # purged
        stored = queue.get(offset)
        same = stored is not None and (stored.body, stored.tag) == (expected.body, expected.tag)
        if same and stored is not None:
            assert parse_offset_id(expected.offset_id).physical_offset == stored.physical_offset
            kept += 1
        else:
            lost += 1
    assert not lost, f"{node} lacks {lost} of {lost + kept} acknowledged messages"
    assert kept, f"{node} begins above all that was acknowledged"


def _check_order(queues: Queues, notes: Notes) -> None:
    """In the order of the calls, none twice, none that was refused, and batches whole and in one piece.

    What nobody knows a node may still have had to pass on when its writer went on: it has no place."""
    at: dict[bytes, tuple[TopicQueue, int]] = {}
    for place, queue in queues.items():
        last: dict[int, int] = {}
        for offset, stored in queue.items():
            writer, number, _ = stored.body.split(b":")
            assert stored.body not in at, f"{stored.body[:20]!r} of {place} is stored twice"
            if stored.body not in notes.in_doubt:
                assert last.get(int(writer), -1) < int(number), f"{stored.body[:20]!r} is out of order"
                last[int(writer)] = int(number)
            at[stored.body] = (place, offset)
    refused = [body for body in notes.refused if body in at]
    assert not refused, f"{len(refused)} messages were refused and are stored"
    purged = {place: next(iter(queue)) for place, queue in queues.items()}
    for batch in notes.batches:
        places = [at[body] for body in batch if body in at]
        if not places or 0 < places[0][1] == purged[places[0][0]]:
            continue  # never stored, or its first messages were purged
        place, first = places[0]
        assert places == [(place, first + i) for i in range(len(batch))], "a batch is not in one piece"


def _check_consume_queues(folder: Path, queues: Queues) -> None:
    """Every unit as the log has it, and zeros behind the last one."""
    for (topic, queue_id), queue in queues.items():
        files = sorted((folder / topic / str(queue_id)).iterdir())
        stream = b"".join(path.read_bytes() for path in files)
        start = int(files[0].name)
        units = b"".join(
            encode_unit(Unit(m.physical_offset, m.size, tag_code(m.tag))) for m in queue.values()
        )
        at = next(iter(queue)) * UNIT_SIZE - start
        assert at >= 0, f"{topic}-{queue_id} begins too late"
        assert stream[at : at + len(units)] == units, f"{topic}-{queue_id} is not what the log says"
        assert not any(stream[at + len(units) :]), f"{topic}-{queue_id} has more than the log"
    found = {(path.parent.name, int(path.name)) for path in folder.glob("*/*") if any(path.iterdir())}
    assert found >= set(queues)


def _check_deliveries(queues: Queues, notes: Notes) -> None:
    """Consumers were given everything, each message for the first time after all before it. Only for runs
    in which nothing was purged."""
    for place, queue in queues.items() if notes.is_consumed else ():
        seen: list[bytes] = []
        for offset, body in notes.delivered.get(place, []):
            assert offset <= len(seen), f"{place}: {offset} was delivered after {len(seen) - 1}"
            if offset == len(seen):
                seen.append(body)
            assert seen[offset] == body, f"{place}: {offset} was delivered with two bodies"
        stored = [message.body for message in queue.values()]
        assert seen == stored[: len(seen)], f"{place}: others were delivered than are stored"
        end = max((o for t, q, o in notes.acknowledged if (t, q) == place), default=-1)
        assert len(seen) > end, f"{place}: {end - len(seen) + 1} acknowledged messages were not delivered"
