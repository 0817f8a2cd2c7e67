"""What a trace writer promises about its file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.trace.files import BUFFER_BYTES, WINDOW_BYTES, BufferedFile, MappedFile, TraceFile, seal
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev, problems
from chaos.trace.writer import TraceWriter
from dledger.errors import Indeterminate, NotLeader


def lines_of(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert not [found for line in lines for found in problems(line)]
    return lines


def invoke(op: int) -> dict[str, Any]:
    return {"type": "invoke", "op": op, "proc": "p", "f": "append"}


def test_lines_have_the_envelope_and_count_without_a_hole(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, "r1", "client:p3", 2) as writer:
        for n in range(5):
            writer.write(Ev.OP, invoke(n))
    assert writer.path == tmp_path / "raw" / "client-p3.2.jsonl"
    lines = lines_of(writer.path)
    assert [line["seq"] for line in lines] == list(range(7))
    assert {(line["v"], line["run"], line["src"], line["inc"]) for line in lines} == {
        (1, "r1", "client:p3", 2)
    }
    monos = [line["mono"] for line in lines]
    assert monos == sorted(monos)
    assert lines[0]["e"] == "writer_begin" and lines[-1]["e"] == "trace_end"


def test_one_file_per_incarnation(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, "r1", "node:n1", 0), pytest.raises(FileExistsError):
        TraceWriter(tmp_path, "r1", "node:n1", 0)
    with TraceWriter(tmp_path, "r1", "node:n1", 1):
        pass


def test_lines_are_written_when_the_buffer_is_full_or_at_flush(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, "r1", "nemesis") as writer:
        later = writer.now() + 10**9
        writer.write(Ev.META, {"e": "healed"}, at=later)
        assert writer.path.stat().st_size == 0
        writer.flush()
        assert lines_of(writer.path)[1]["mono"] == later
        writer.write(Ev.META, {"e": "log_error", "node": "n1", "text": "ä" * BUFFER_BYTES})
        assert len(lines_of(writer.path)) == 3


def test_lines_of_a_mapped_file_are_there_at_once(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, "r1", "node:n1", file=MappedFile)
    long = "ä" * 100_000
    for n in range(WINDOW_BYTES // 100_000):
        writer.write(Ev.META, {"e": "log_error", "node": "n1", "text": long})
        found = writer.path.read_bytes().rstrip(b"\0").decode().splitlines()
        assert len(found) == n + 2 and json.loads(found[-1])["text"] == long
    assert writer.path.stat().st_size % WINDOW_BYTES == 0
    writer.close()
    assert len(lines_of(writer.path)) == writer.lines


@pytest.mark.parametrize("zeros", [0, 1, 63, 1 << 16, (1 << 17) + 5])
def test_sealing_takes_the_zeros_away_and_nothing_else(tmp_path: Path, zeros: int) -> None:
    path = tmp_path / "x"
    for content in (b"", b"a\n", b"a\nhalf", b"\0a" * 40_000):
        path.write_bytes(content + bytes(zeros))
        seal(path)
        assert path.read_bytes() == content


@pytest.mark.parametrize("file", [BufferedFile, MappedFile])
def test_a_file_of_this_name_is_not_written_to(tmp_path: Path, file: Callable[[Path], TraceFile]) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(FileExistsError):
        file(tmp_path / "x")


@pytest.mark.parametrize("kind", ["BufferedFile", "MappedFile"])
def test_a_killed_writer_leaves_whole_lines_but_for_the_last(tmp_path: Path, kind: str) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom chaos.trace.files import *\n"
        "from chaos.trace.writer import Ev, TraceWriter\n"
        f"writer = TraceWriter(Path(sys.argv[1]), 'r1', 'client:p1', file={kind})\n"
        "n = 0\n"
        "while True:\n"
        "    writer.write(Ev.OP, {'type': 'invoke', 'op': n})\n"
        "    n += 1\n"
        "    n == 5000 and print('ready', flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    path = tmp_path / "raw" / "client-p1.0.jsonl"
    seal(path)
    whole = path.read_bytes().split(b"\n")[:-1]
    seqs = [json.loads(line)["seq"] for line in whole]
    assert len(seqs) > 1000 and seqs == list(range(len(seqs)))


def test_an_operation_is_invoked_and_completed_by_one_process(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, "r1", "client:p0") as writer:
        process = Process(writer, Numbers(0))
        process.item(0, 1, "00ff", ledger="g")
        process.invoke("send_batch", count=1, ledger="g")
        process.ok(lidx=7, term=1)
        process.invoke("append", mid=2)
        process.failed(NotLeader("x"))
        process.invoke("append", mid=3)
        process.failed(Indeterminate("x"))
        process.invoke("append", mid=4)
        process.ok(lidx=8, term=2)
    lines = [line for line in lines_of(writer.path) if line["ev"] == "op"]
    assert [line["type"] for line in lines] == [
        "invoke",
        "ok",
        "invoke",
        "fail",
        "invoke",
        "info",
        "invoke",
        "ok",
    ]
    procs = [line["proc"] for line in lines]
    assert procs[0] == procs[5] != procs[6] == procs[7], "after info it goes on under a new number"
    assert [line["op"] for line in lines] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert lines[3]["code"] == "404 NOT_LEADER"


def test_clients_have_numbers_of_their_own() -> None:
    one, other = Numbers(0), Numbers(1)
    assert {one.op() for _ in range(100)}.isdisjoint(other.op() for _ in range(100))
    assert {one.message() for _ in range(100)}.isdisjoint(other.message() for _ in range(100))
    assert {one.process() for _ in range(100)}.isdisjoint(other.process() for _ in range(100))
