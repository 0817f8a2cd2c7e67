"""A process is watched from its first moment on, by what it asks the system for; strace sees the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chaos.syncs import recorder
from chaos.syncs.classic import ClassicReplay, LogStored
from chaos.syncs.journal import Line, Span, read_lines, spans_of
from chaos.syncs.replay import JournalReplay, LogSynced, RecordingStarted, VoteSynced
from chaos.syncs.trace import SYNCS_FOLDER, recording_environment, write_syncs
from chaos.trace.schema import RAW_DIR, problems
from dledger.cli.local.node_process import import_path
from tests.conftest import DID_NOT_RUN

NAME = "00000000000000000000"
#: What every program below begins with: a data file whose name is durable, and entries as on disk.
HEAD = f"""
import os, signal, struct, sys
root = sys.argv[1]
def entry(index, pos, size=100, term=1):
    return struct.pack(">iiqqq", 1, size, index, term, pos) + bytes(size - 32)
folder = os.open(root + "/data", os.O_RDONLY)
file = os.open(root + "/data/{NAME}", os.O_RDWR | os.O_CREAT)
os.fsync(folder)
"""


def run(folder: Path, program: str, *before: str) -> int:
    """The program, watched; its exit code."""
    store = folder / "store"
    (store / "data").mkdir(parents=True, exist_ok=True)
    path = import_path()["PYTHONPATH"]
    environment = {**os.environ, **recording_environment(folder, "n1", store, path)}
    command = [*before, sys.executable, "-P", "-c", HEAD + program, str(store)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode <= 0, done.stderr
    return done.returncode


def journals(folder: Path) -> list[list[Line]]:
    return [list(read_lines(path)) for path in sorted((folder / SYNCS_FOLDER / "n1").glob("*.log"))]


def durable(folder: Path) -> list[int]:
    replay = JournalReplay()
    return [f.entry for lines in journals(folder) for f in replay.life(lines) if isinstance(f, LogSynced)]


def test_the_journal_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    program = """
os.pwritev(file, [entry(0, 0), entry(1, 100)], 0)
os.fdatasync(file)
os.pwritev(file, [entry(2, 200)], 200)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(tmp_path, program) == -signal.SIGKILL
    assert durable(tmp_path) == [1]
    assert run(tmp_path, "os.fdatasync(file)") == 0
    assert durable(tmp_path) == [1, 2]


def test_the_end_of_a_classic_log_is_known_at_each_write(tmp_path: Path) -> None:
    """New files, the zeros by which a log loses its end, another process, and a log that was moved away."""
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    first = """
def file_at(begin):
    file = os.open(f"{root}/commitlog/{begin:020}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 1000)
    return file
one, two = file_at(0), file_at(1000)
os.pwritev(one, [b"a" * 300, b"b" * 700], 0)
os.pwritev(two, [b"c" * 50], 0)
os.pwritev(one, [b"a"], 0)
os.pwritev(two, [bytes(1000)], 20)
os.kill(os.getpid(), signal.SIGKILL)
"""
    second = """
file = os.open(f"{root}/commitlog/{1000:020}", os.O_RDWR)
os.pwritev(file, [b"d" * 10], 20)
"""
    assert run(tmp_path, first) == -signal.SIGKILL
    assert run(tmp_path, second) == 0
    log.rename(tmp_path / "away")
    log.mkdir()
    assert run(tmp_path, "") == 0
    replay = ClassicReplay()
    facts = [fact for lines in journals(tmp_path) for fact in replay.life(lines)]
    assert [fact.end for fact in facts if isinstance(fact, LogStored)] == [1000, 1050, 1020, 1030, 0]
    assert sum(isinstance(fact, RecordingStarted) for fact in facts) == 3
    write_syncs(tmp_path, "r", ["n1"], is_classic=True)
    told = [json.loads(line) for line in (tmp_path / RAW_DIR / "disk-n1.0.jsonl").read_text().splitlines()]
    assert not [problem for line in told for problem in problems(line)]
    assert [line["off"] for line in told if line.get("e") == "stored"] == [1000, 1050, 1020, 1030, 0]


@pytest.mark.parametrize(
    "program",
    [
        "os.pwrite(file, entry(0, 0), 0)",
        "os.write(file, entry(0, 0))",
        "os.writev(file, [entry(0, 0)])",
        "os.pwritev(file, [entry(0, 0)[:10], entry(0, 0)[10:]], 0)",
        "for i in range(0, 100, 20): os.pwrite(file, entry(0, 0)[i:i + 20], i)",
    ],
)
def test_whichever_way_an_entry_is_written_it_is_seen(tmp_path: Path, program: str) -> None:
    run(tmp_path, program)
    assert durable(tmp_path) == []
    run(tmp_path / "synced", f"{program}\nos.fdatasync(file)")
    assert durable(tmp_path / "synced") == [0]


@pytest.mark.parametrize(
    "program",
    [
        "import mmap; m = mmap.mmap(file, 100); m[:] = entry(0, 0)",
        "open(root + '/data/NAME', 'r+b').write(entry(0, 0))",
        "import pathlib; pathlib.Path(root + '/data/NAME').write_bytes(entry(0, 0))",
        "other = os.open(root + '/other', os.O_RDWR | os.O_CREAT); os.sendfile(file, other, 0, 1)",
        "open(root + '/data/T', 'wb').write(b'x'); os.rename(root + '/data/T', root + '/data/NAME')",
        "open(root + '/x', 'wb').write(b'x'); os.replace(root + '/x', root + '/data/NAME')",
    ],
)
def test_what_is_written_past_the_recorder_is_not_durable(tmp_path: Path, program: str) -> None:
    first = "os.pwrite(file, entry(0, 0), 0)\nos.fdatasync(file)\n"
    run(tmp_path, f"{first}{program.replace('NAME', NAME)}\nos.fdatasync(file)\nos.fsync(folder)")
    assert durable(tmp_path) == [0, -1]


def test_a_short_write_is_told_and_the_rest_is_found(tmp_path: Path) -> None:
    # With a limit for the size of files the system takes as much as fits.
    short = """
import resource
data = entry(0, 0) + entry(1, 100) + entry(2, 200)
os.ftruncate(file, 300)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
assert os.pwrite(file, data, 0) == 150
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    run(tmp_path, f"{short}os.fdatasync(file)")
    assert durable(tmp_path) == [0]
    run(tmp_path / "whole", f"{short}os.pwrite(file, data[150:], 150)\nos.fdatasync(file)")
    assert durable(tmp_path / "whole") == [2]


@pytest.mark.parametrize("chunk", [64, 100, 333, 4096])
def test_of_a_copy_with_a_damaged_header_all_other_entries_are_seen(chunk: int) -> None:
    sizes = [48, 100, 200, 48, 49, 300, 95]
    pos, whole, spans = 1000, b"", []
    for index, size in enumerate(sizes):
        spans.append(Span(len(whole), len(whole) + size, index, 1))
        whole += struct.pack(">iiqqq", 1, size, index, 1, pos + len(whole)) + bytes([7]) * (size - 32)
    for damaged in spans:
        for bit in range(8 * 32):
            content = bytearray(whole + bytes(200))
            content[damaged.begin + bit // 8] ^= 1 << bit % 8
            file, found = recorder._WatchedFile(1, f"data/{pos:020}"), list[Span]()
            for at in range(0, len(content), chunk):
                what = recorder._entries(file, bytes(content[at : at + chunk]), at)
                found += spans_of(what.decode())
            others = [span for span in found if span.end <= damaged.begin or span.begin >= damaged.end]
            assert others == [span for span in spans if span != damaged], (damaged, bit)


def test_a_failed_sync_is_told(tmp_path: Path) -> None:
    program = """
os.pwrite(file, entry(0, 0), 0)
real = os.fdatasync.__closure__
import chaos.syncs.recorder as recorder
watched = next(cell.cell_contents for cell in real if isinstance(cell.cell_contents, recorder.Recorder))
def fail(handle): raise OSError(5, "no")
try: watched.sync(fail, file)
except OSError: pass
os.fdatasync(file)
"""
    run(tmp_path, program)
    assert [line.what for line in journals(tmp_path)[0]][-2:] == ["unsynced", "sync"]
    assert durable(tmp_path) == []


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    run(tmp_path, "open(root + '/other', 'w').write('x'); os.unlink(root + '/other')")
    assert [line.what for line in journals(tmp_path)[0]] == ["life", "listed", "made", "folder"]


def test_what_was_durable_goes_into_the_trace(tmp_path: Path) -> None:
    vote = """
def save(text):
    new = os.open(root + "/currterm.tmp", os.O_RDWR | os.O_CREAT)
    os.pwrite(new, text, 0)
    os.fdatasync(new)
    os.close(new)
    os.rename(root + "/currterm.tmp", root + "/currterm")
    os.fsync(os.open(root, os.O_RDONLY))
save(b"currTerm=1\\nvoteLeader=n2\\n")
os.pwritev(file, [entry(0, 0)], 0)
os.fdatasync(file)
save(b"currTerm=2\\nvoteLeader=\\n")
"""
    run(tmp_path, vote)
    write_syncs(tmp_path, "r", ["n1", "n2"])
    lines = [json.loads(text) for text in (tmp_path / RAW_DIR / "disk-n1.0.jsonl").read_text().splitlines()]
    assert not [problem for line in lines for problem in problems(line)]
    told = [(line["e"], line.get("lidx"), line.get("term"), line.get("vote")) for line in lines]
    assert told == [
        ("writer_begin", None, None, None),
        ("watched", None, None, None),
        ("vote_synced", None, 1, "n2"),
        ("synced", 0, None, None),
        ("vote_synced", None, 2, None),
        ("trace_end", None, None, None),
    ]
    stamps = [line["mono"] for line in lines]
    assert stamps == sorted(stamps)
    replay = JournalReplay()
    facts = [fact for journal in journals(tmp_path) for fact in replay.life(journal)]
    assert {type(fact) for fact in facts} == {RecordingStarted, LogSynced, VoteSynced}
    assert stamps[1:-1] == sorted(fact.mono for fact in facts)


#: The product's own store, and a second witness: the calls that the kernel sees.
STORE = """
from pathlib import Path
from dledger.infra.files.disk import OsDisk, replace_file
from dledger.store.files import FileSequence
disk = OsDisk()
log = FileSequence(disk, Path(root, "data"), 1000)
log.load()
for number in range(25):
    log.ensure(number * 100)
    log.write(number * 100, [entry(number, number * 100)], size=100)
    if number % 3 == 0:
        log.sync()
log.cut(1500)
replace_file(disk, Path(root, "currterm"), b"currTerm=1\\nvoteLeader=n1\\n")
"""
CALLS = {"fdatasync": "sync", "pwritev": "write", "pwritev2": "write", "ftruncate": "cut"}


def test_strace_sees_the_same_calls_in_the_same_order(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip(f"{DID_NOT_RUN}: strace is not installed (Debian: apt-get install strace)")
    seen = tmp_path / "seen"
    watch = [strace, "-f", "-y", "-o", str(seen), "-e", f"trace={','.join(CALLS)},fsync,rename"]
    if subprocess.run([*watch, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{DID_NOT_RUN}: strace may not trace here")
    run(tmp_path, STORE, *watch)
    inside = str(tmp_path / "store")
    by_strace = []
    for text in seen.read_text().splitlines():
        if inside in text and "= -1" not in text:
            call = text.split(maxsplit=1)[1].partition("(")[0]
            is_folder = call == "fsync"
            by_strace.append("folder" if is_folder else "name" if call == "rename" else CALLS[call])
    [lines] = journals(tmp_path)
    by_us = [line.what for line in lines if line.what in {*CALLS.values(), "folder", "name"}]
    assert by_us == by_strace
    assert Counter(by_us)["sync"] > 9
    # Entries 15 on were cut, and 24 was not synced before.
    assert durable(tmp_path)[-1] == 14
