"""The client commands against three real nodes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from dledger.cli.local.local_cluster import LocalCluster
from dledger.cli.read_command import entry_to_json
from dledger.client import AsyncClient, Entry

from .conftest import Command

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-commands")]

BINARY = b"hello\n\nb\xff\0\r\n" + "grüße".encode() + b"\nlast, without newline"


def end_of(on_cluster: Command) -> int:
    """An index that only entries appended from now on have."""
    return 1 + max(node["ledger_end_index"] for node in status_of(on_cluster)["nodes"])


def status_of(on_cluster: Command) -> dict[str, Any]:
    shown = json.loads(on_cluster("status", "--json", "--timeout", "20").stdout)
    assert isinstance(shown, dict)
    return shown


def test_what_was_appended_is_read_byte_for_byte(on_cluster: Command) -> None:
    start = end_of(on_cluster)
    appended = on_cluster("append", stdin=BINARY)
    assert "5 lines acknowledged" in appended.stderr
    assert "last index" in appended.stderr
    assert on_cluster("read", "--from-index", str(start)).stdout_bytes == BINARY + b"\n"


def test_read_ends_with_the_reader_of_its_output(on_cluster: Command) -> None:
    """Even if no further entry arrives."""
    on_cluster("append", stdin=b"one")
    with on_cluster.spawn("read", "--follow") as read:
        assert read.stdout is not None and read.stdout.readline()
        read.stdout.close()
        assert read.wait(60) == 0


def test_json_tells_text_from_bytes(on_cluster: Command) -> None:
    start = end_of(on_cluster)
    on_cluster("append", "--quiet", stdin=BINARY)
    shown = [
        json.loads(line)
        for line in on_cluster("read", "--from-index", str(start), "--json").stdout.splitlines()
    ]
    bodies = [base64.b64decode(e["body_base64"]) if "body_base64" in e else e["body"].encode() for e in shown]
    assert bodies == BINARY.split(b"\n")
    indexes = [e["index"] for e in shown]
    assert indexes == sorted(set(indexes)), "entries of a new leader may stand in between"
    assert all(e["term"] >= 1 and e["pos"] > 0 for e in shown)


def test_a_file_in_many_batches(on_cluster: Command, tmp_path: Path) -> None:
    data = b"".join(b"%d %s\n" % (i, b"x" * (i % 70)) for i in range(5000))
    (tmp_path / "lines").write_bytes(data)
    start = end_of(on_cluster)
    on_cluster("append", "--file", str(tmp_path / "lines"), "--batch-bytes", "8192")
    assert on_cluster("read", "--from-index", str(start)).stdout_bytes == data


def test_reading_a_part(on_cluster: Command) -> None:
    start = end_of(on_cluster)
    on_cluster("append", "--no-session", stdin=b"one\ntwo\nthree\n")
    assert on_cluster("read", "--from-index", str(start), "--count", "2").stdout == "one\ntwo\n"
    assert on_cluster("read", "--from-index", str(start), "--count", "1", "--local").exit_code == 0
    assert on_cluster("read", "--from-index", str(start), "--count", "2", "--follow").stdout == "one\ntwo\n"


def test_reading_past_the_end_is_one_line(on_cluster: Command) -> None:
    result = on_cluster("read", "--from-index", "99999999", code=1)
    assert result.stderr.startswith("error 410 INDEX_OUT_OF_RANGE: ")
    assert result.stderr.count("\n") == 1


def test_a_line_over_the_limit_is_named(on_cluster: Command) -> None:
    start = end_of(on_cluster)
    result = on_cluster(
        "append", "--max-line-bytes", "10", stdin=b"short\n" + b"x" * 11 + b"\nnever\n", code=1
    )
    assert "1 line acknowledged, 1 failed" in result.stderr
    assert "error 610 BODY_TOO_LARGE: line 2 is longer than 10 bytes" in result.stderr
    assert on_cluster("read", "--from-index", str(start)).stdout == "short\n"


def test_status_for_people_and_programs(cluster: LocalCluster, on_cluster: Command) -> None:
    shown = status_of(on_cluster)
    assert {node["node_id"] for node in shown["nodes"]} == {"n1", "n2", "n3"}
    assert {node["leader_id"] for node in shown["nodes"]} == {shown["leader_id"]}
    table = on_cluster("status").stdout.splitlines()
    assert table[0].split() == [
        *("node", "address", "role", "term", "leader", "begin", "end", "committed", "lag", "disk", "health")
    ]
    assert sum("LEADER" in line for line in table) == 1
    assert len(table) == 4


def test_leadership_moves_where_it_is_told(on_cluster: Command) -> None:
    on_cluster("append", stdin=b"before\n")
    old = status_of(on_cluster)["leader_id"]
    to = next(n["node_id"] for n in status_of(on_cluster)["nodes"] if n["node_id"] != old)
    assert on_cluster("transfer", "--to", to).stdout.startswith(f"{to} leads in term ")
    on_cluster("append", stdin=b"after\n")
    assert status_of(on_cluster)["leader_id"] == to


def test_transfer_to_a_stranger_names_the_members(on_cluster: Command) -> None:
    result = on_cluster("transfer", "--to", "n9", code=1)
    assert "error 401 UNKNOWN_MEMBER" in result.stderr
    assert "n1, n2, n3" in result.stderr


def test_a_killed_leader_costs_nothing(cluster: LocalCluster, on_cluster: Command) -> None:
    directory = str(cluster.directory)
    start = end_of(on_cluster)
    on_cluster("append", stdin=b"one\n")
    killed = on_cluster("cluster", "kill", "--dir", directory, "leader").stdout.split()[2]
    on_cluster("append", stdin=b"two\n")
    assert on_cluster("read", "--from-index", str(start)).stdout == "one\ntwo\n"
    shown = json.loads(on_cluster("cluster", "status", "--dir", directory, "--json").stdout)
    victim = next(node for node in shown["nodes"] if node["node_id"] == killed)
    assert (victim["state"], victim["why"]) == ("down", "killed by SIGKILL")
    assert [(row["port"], len(row["addresses"])) for row in shown["ports"]] == [
        ("log", 3),
        ("status page", 3),
    ]
    assert (
        f"{killed} is down: killed by SIGKILL" in on_cluster("cluster", "status", "--dir", directory).stdout
    )
    assert "NETWORK_ERROR" in on_cluster("status").stdout
    on_cluster("cluster", "restart-node", "--dir", directory, killed)
    goal = start + 1
    cluster.wait_until(
        lambda nodes: next((n for n in nodes if n.node_id == killed and n.committed_index >= goal), None),
        20,
        f"{killed} with the log",
    )


def test_no_majority_leaves_lines_in_doubt(cluster: LocalCluster, on_cluster: Command) -> None:
    """One line while all is well, the next one when only the leader is left."""
    leader = cluster.wait_for_leader()
    followers = [node_id for node_id in cluster.node_ids if node_id != leader.node_id]
    start = end_of(on_cluster)
    with on_cluster.spawn("append", "--no-session", "--timeout", "1") as process:
        assert process.stdin is not None
        process.stdin.write(b"well\n")
        process.stdin.flush()
        on_cluster("read", "--from-index", str(start), "--count", "1", "--follow")
        for node_id in followers:
            cluster.pause(node_id)
        try:
            _, errors = process.communicate(b"in doubt\n")
        finally:
            for node_id in followers:
                cluster.resume(node_id)
    assert process.returncode == 3, errors
    assert b"1 line acknowledged, 1 in doubt" in errors
    assert b"the first affected line is line 2" in errors
    cluster.wait_for_all()


async def test_stdin_is_a_stream(cluster: LocalCluster, on_cluster: Command) -> None:
    """A line is in the log while the pipe that it came through is still open."""
    with on_cluster.spawn("append") as process:
        assert process.stdin is not None
        async with AsyncClient(cluster.addresses, session=False) as client:
            process.stdin.write(b"still open\n")
            process.stdin.flush()
            try:
                async with asyncio.timeout(60):
                    async for entry in client.follow():
                        if entry.body == b"still open":
                            break
            except TimeoutError:
                process.kill()
                pytest.fail(f"it is not in the log; {process.returncode}: {process.communicate()}")
        assert process.poll() is None
        _, errors = process.communicate(b"and closed")
        assert process.returncode == 0
        assert b"2 lines acknowledged" in errors


def test_a_broken_pipe_is_the_end_not_an_error(on_cluster: Command) -> None:
    on_cluster("append", stdin=b"x" * 1000 + b"\n" + (b"y" * 1000 + b"\n") * 1000)
    with on_cluster.spawn("read") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_ctrl_c_says_what_became_of_the_lines(on_cluster: Command) -> None:
    with on_cluster.spawn("append") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        start = end_of(on_cluster)
        process.stdin.write(b"only line\n")
        process.stdin.flush()
        on_cluster("read", "--from-index", str(start), "--count", "1", "--follow")
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read().decode()
        assert process.wait() == 130
    assert "1 line acknowledged" in errors
    assert "interrupted" in errors
    assert "Traceback" not in errors


def test_inspect_tells_good_from_damaged(cluster: LocalCluster, on_cluster: Command, tmp_path: Path) -> None:
    on_cluster("append", stdin=b"a body to find\n" * 3)
    node_id = cluster.node_ids[0]
    cluster.stop_node(node_id)
    try:
        copy = tmp_path / "store"
        shutil.copytree(cluster.store_directory(node_id), copy)
    finally:
        cluster.start_node(node_id)
    shown = json.loads(on_cluster("inspect", str(copy), "--json").stdout)
    assert shown["verdict"] == "clean"
    assert shown["identity"]["node_id"] == node_id
    people = on_cluster("inspect", str(copy), "--entries", "--from-index", "1", "--count", "2").stdout
    assert "verdict    clean" in people
    before = snapshot(copy)
    data = sorted((copy / "data").iterdir())[0]
    content = bytearray(data.read_bytes())
    content[content.index(b"a body to find")] ^= 1
    data.write_bytes(content)
    damaged = snapshot(copy)
    assert damaged != before
    result = on_cluster("inspect", str(copy), "--entries", code=1)
    assert "damaged" in result.stdout
    assert "WRONG" in result.stdout
    assert snapshot(copy) == damaged


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_json_of_an_entry() -> None:
    assert entry_to_json(Entry(1, 2, 3, b"\xff")) == {"index": 1, "term": 2, "pos": 3, "body_base64": "/w=="}
    assert os.linesep not in json.dumps(entry_to_json(Entry(1, 2, 3, b"a\nb")))
