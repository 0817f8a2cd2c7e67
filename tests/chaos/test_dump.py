"""What is written into the trace of the files of a node: all of what is good, and what is not is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.delivery_state.commands import DELIVERY_TOPIC
from broker_adapter.metadata.commands import METADATA_TOPIC
from broker_adapter.store.consume_queues import ConsumeQueues
from broker_adapter.wire.compression import CompressionType, compressor_of
from broker_adapter.wire.consume_queue_unit import encode_units
from broker_adapter.wire.message import MessageRecord, encode
from chaos.cluster.node_configs import ClusterVariant
from chaos.dump import dump_node
from chaos.hostile.orders import PREFIX
from chaos.trace.schema import LEDGER, problems
from chaos.trace.writer import TraceWriter
from chaos.workloads.messages import digest
from dledger.core.values import EMPTY_TAIL, ENTRY_HEADER_SIZE
from dledger.infra.files.disk import OsDisk
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.format.layout import file_name
from dledger.store.identity import Identity, init_directory

SIZE = 4096
BODIES = [b"%d payload %d" % (mid, mid) for mid in range(1, 9)]


def write_store(folder: Path, bodies: Sequence[bytes], committed: int | None = None) -> list[Batch]:
    """A no-op, and the bodies in batches of two."""
    init_directory(folder, Identity("c", "g", "n1", data_file_size=SIZE))
    batches = [encode_batch(EMPTY_TAIL, 3, [], data_file_size=SIZE, head=b"")]
    for at in range(0, len(bodies), 2):
        batches.append(encode_batch(batches[-1].tail, 3, bodies[at : at + 2], data_file_size=SIZE))
    store = DiskLogStore.open(folder)
    store.append(batches)
    store.sync()
    if committed is not None:
        store.save_checkpoint(committed, None)
    store.close()
    return batches


def dumped(
    folder: Path, kind: ClusterVariant = "log", settled: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The lines of a dump by their kind."""
    with TraceWriter(folder, "r", "dump:n1") as writer:
        dump_node(writer, "n1", folder / "store", kind, settled)
    lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert not [found for line in lines for found in problems(line)]
    writer.path.unlink()
    by_kind: dict[str, list[dict[str, Any]]] = {"dump": [], "cq": [], "dumped": [], "dump_hole": []}
    for line in lines:
        by_kind.setdefault(line["ev"] if line["ev"] != "meta" else line["e"], []).append(line)
    return by_kind


def test_every_entry_is_there_with_message_chain_and_digest(tmp_path: Path) -> None:
    batches = write_store(tmp_path / "store", BODIES)
    lines = dumped(tmp_path, settled=4)
    rows = lines["dump"]
    assert [row["lidx"] for row in rows] == list(range(9))
    assert rows[0]["internal"] and "mid" not in rows[0]
    assert [(row["mid"], row["digest"]) for row in rows[1:]] == [
        (mid, digest(body)) for mid, body in enumerate(BODIES, 1)
    ]
    chains = {row["lidx"]: row["chain"] for row in rows}
    assert all(chains[batch.last_index] == f"{batch.chain_crc:08x}" for batch in batches)
    assert {row["eterm"] for row in rows} == {3}
    assert [row["is_committed"] for row in rows] == [True] * 5 + [False] * 4
    [told] = lines["dumped"]
    assert (told["count"], told["ended"]) == (9, 8) and told["text"].startswith("clean")


def test_equal_committed_entries_give_equal_digests_whatever_follows(tmp_path: Path) -> None:
    told = {}
    for name, bodies in {"a": BODIES, "b": BODIES[:6], "c": [b"9 x", *BODIES[1:]]}.items():
        write_store(tmp_path / name / "store", bodies)
        [told[name]] = dumped(tmp_path / name, settled=4)["dumped"]
    assert told["a"]["digest"] == told["b"]["digest"] != told["c"]["digest"]


def test_without_a_settled_end_the_nodes_own_note_counts(tmp_path: Path) -> None:
    write_store(tmp_path / "store", BODIES, committed=2)
    assert [row["is_committed"] for row in dumped(tmp_path)["dump"]] == [True] * 3 + [False] * 6


def test_of_a_damaged_node_comes_what_is_good_and_the_hole_is_named(tmp_path: Path) -> None:
    batches = write_store(tmp_path / "store", BODIES)
    path = tmp_path / "store" / "data" / file_name(0)
    content = bytearray(path.read_bytes())
    content[batches[2].pos + 60] ^= 1
    path.write_bytes(content)
    lines = dumped(tmp_path)
    assert [row["lidx"] for row in lines["dump"]] == [0, 1, 2, 5, 6, 7, 8]
    [hole] = lines["dump_hole"]
    assert (hole["ledger"], hole["lidx"], hole["last"]) == (LEDGER, 3, 4) and hole["text"]
    assert lines["dumped"][0]["text"].startswith("damaged")


def test_a_torn_end_is_left_out_and_said(tmp_path: Path) -> None:
    batches = write_store(tmp_path / "store", BODIES)
    data, index = (tmp_path / "store" / name / file_name(0) for name in ("data", "index"))
    content = bytearray(data.read_bytes())
    content[batches[-1].end_pos - 5 :] = bytes(len(content) - batches[-1].end_pos + 5)
    data.write_bytes(content)
    records = bytearray(index.read_bytes())
    records[7 * 32 :] = bytes(len(records) - 7 * 32)
    index.write_bytes(records)
    (tmp_path / "store" / "checkpoint").unlink(missing_ok=True)
    lines = dumped(tmp_path)
    assert [row["lidx"] for row in lines["dump"]] == list(range(7))
    assert lines["dumped"][0]["text"].startswith("torn")


def test_a_node_without_files_is_said_to_have_none(tmp_path: Path) -> None:
    lines = dumped(tmp_path)
    assert not lines["dump"] and lines["dumped"][0]["count"] == 0


def records_of(count: int) -> list[bytes]:
    """A metadata command, and messages of two queues in turn, as they lie in the entries behind a no-op."""
    records = [encode(MessageRecord(METADATA_TOPIC, b"x"))]
    for n in range(count):
        message = MessageRecord("t", BODIES[n], queue_id=n % 2, queue_offset=n // 2)
        records.append(encode(message))
    return [bytes(record) for record in records]


def test_records_of_a_broker_name_their_place_and_units_their_entry(tmp_path: Path) -> None:
    records = records_of(5)
    batches = write_store(tmp_path / "store", records)
    positions = []
    for batch in batches[1:]:
        at = batch.pos
        for record in records[batch.first_index - 1 : batch.last_index]:
            positions.append(at)
            at += ENTRY_HEADER_SIZE + len(record)
    queues = ConsumeQueues(tmp_path / "store-broker", OsDisk(), units_per_file=10)
    for n, (pos, record) in enumerate(zip(positions[1:], records[1:], strict=True)):
        unit = encode_units([(pos + ENTRY_HEADER_SIZE, len(record), 77)])
        queues.obtain("t", n % 2).append(n // 2, unit)
    queues.obtain("t", 1).append(2, encode_units([(10_000, 9, 0)]))
    queues.close()
    lines = dumped(tmp_path, "broker", settled=6)
    rows = lines["dump"]
    assert [row.get("internal", False) for row in rows] == [True, True] + [False] * 5
    assert [(row["topic"], row["q"], row["qoff"], row["mid"]) for row in rows[2:]] == [
        ("t", n % 2, n // 2, n + 1) for n in range(5)
    ]
    units = {(unit["q"], unit["qoff"]): unit["lidx"] for unit in lines["cq"]}
    assert units == {**{(n % 2, n // 2): n + 2 for n in range(5)}, (1, 2): -1}
    assert {unit["tag_hash"] for unit in lines["cq"]} == {77, 0}
    assert [told["count"] for told in lines["dumped"]] == [7, 6]


def test_topics_of_hostile_clients_have_no_units_but_count_in_the_digest(tmp_path: Path) -> None:
    write_store(tmp_path / "store", records_of(1))
    queues = ConsumeQueues(tmp_path / "store-broker", OsDisk(), units_per_file=10)
    queues.obtain("t", 0).append(0, encode_units([(100, 9, 0)]))
    queues.close()
    _, without = dumped(tmp_path, "broker")["dumped"]
    queues = ConsumeQueues(tmp_path / "store-broker", OsDisk(), units_per_file=10)
    for topic in (f"{PREFIX}made-up", f"%DLQ%{PREFIX}group"):
        queues.obtain(topic, 0).append(0, encode_units([(200, 9, 0)]))
    queues.close()
    lines = dumped(tmp_path, "broker")
    assert [unit["topic"] for unit in lines["cq"]] == ["t"]
    _, told = lines["dumped"]
    assert told["count"] == without["count"] == 1 and told["digest"] != without["digest"]


@pytest.mark.parametrize("topic", [METADATA_TOPIC, DELIVERY_TOPIC])
def test_commands_of_the_broker_are_no_messages(tmp_path: Path, topic: str) -> None:
    write_store(tmp_path / "store", [bytes(encode(MessageRecord(topic, b"5 x")))])
    [_, row] = dumped(tmp_path, "broker")["dump"]
    assert row["internal"] and "mid" not in row


@pytest.mark.parametrize("method", CompressionType)
def test_a_message_is_the_same_whether_or_not_its_producer_compressed_it(
    tmp_path: Path, method: CompressionType
) -> None:
    body = b"5 " + bytes(5000)
    packed = MessageRecord("t", compressor_of(method)(body), sys_flag=method.sys_flag)
    damaged = MessageRecord("t", b"6 damaged", queue_offset=1, sys_flag=method.sys_flag)
    write_store(tmp_path / "store", [bytes(encode(packed)), bytes(encode(damaged))])
    [_, *rows] = dumped(tmp_path, "broker")["dump"]
    assert [(row["mid"], row["digest"]) for row in rows] == [(5, digest(body)), (6, digest(b"6 damaged"))]


def test_what_is_no_record_on_a_broker_is_no_message_of_anybody(tmp_path: Path) -> None:
    write_store(tmp_path / "store", [b"5 no record"])
    assert dumped(tmp_path, "broker")["dump"][1]["mid"] == -1
