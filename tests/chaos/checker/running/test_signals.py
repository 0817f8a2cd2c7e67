"""Told to end, and without room for tables: nothing is left behind, and errors are a line. With Spark, whose
JVM is what could be left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.checker.engines.spark import OFF, VARIABLE
from tests.chaos.checker.synthetic import clean_trace
from tests.process.small_disks import mounted

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.process, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[4]


def spawn(run_dir: Path, work: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "chaos.checker.main", str(run_dir), "--work", str(work), *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), VARIABLE: OFF},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def jvms_of(work: Path) -> Iterator[int]:
    """Processes whose command line names a directory below `work`."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(work) + b"/" in (process / "cmdline").read_bytes():
                yield int(process.name)
        except OSError:
            continue


@pytest.mark.parametrize(
    "when", ["while the JVM starts", pytest.param("while queries run", marks=pytest.mark.long)]
)
def test_a_command_that_is_told_to_end_leaves_nothing(when: str, tmp_path: Path) -> None:
    clean_trace("r", rounds=6).write(tmp_path / "r")
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    with spawn(tmp_path / "r", work, temporary) as process:
        assert process.stdout is not None and process.stderr is not None
        if when == "while the JVM starts":
            while not (found := list(jvms_of(work))):
                assert process.poll() is None
        else:
            for line in process.stderr:
                if line.startswith("read "):
                    break
            found = list(jvms_of(work))
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.stdout.read() == ""
    assert found
    assert process.returncode == 128 + signal.SIGTERM
    assert "terminated by SIGTERM; this is no verdict on the run" in said
    assert "Traceback" not in said
    assert list(jvms_of(work)) == []
    assert list(work.iterdir()) == []
    # What a JVM that was killed leaves there the next one removes.
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("hsperfdata")] == []


#: Exceptions out of nowhere get lost: so does this one.
STUBBORN = """
import subprocess, sys, threading
from pathlib import Path
from chaos.checker.command.ending import signals_raise, work_folder

with signals_raise(patience_s=0.1), work_folder(Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "1000"])
    while True:
        try:
            print(child.pid, flush=True)
            threading.Event().wait()
        except BaseException:
            pass
"""


def test_a_command_that_loses_the_exception_of_a_signal_ends_all_the_same(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        child = int(process.stdout.readline())
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == "terminated by SIGTERM; this is no verdict on the run\n"
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()


#: Told to end where nobody hears an exception: `{prepared}` makes that come about.
TOLD_UNHEARD = """
import os, signal, sys, threading
from chaos.checker.command import ending

def told_to_end():
    os.kill(os.getpid(), signal.SIGTERM)
    for each in range(1000):
        pass

{prepared}

try:
    with ending.signals_raise(patience_s=500):
        Last()
        {waits}
except ending.TerminationRequest as ended:
    print(ending.termination_message(ended), file=sys.stderr)
    sys.exit(ended.code)
"""
IN_A_DEL = """
class Last:
    def __del__(self):
        told_to_end()
"""
IN_THE_HOOK_OF_ANOTHER_ERROR = """
class Last:
    def __del__(self):
        raise ValueError

sys.unraisablehook = lambda unraisable: told_to_end()
"""
IN_THE_HOOK_OF_ITS_OWN_ERROR = (
    IN_A_DEL
    + """
was_lost = ending._Ending.was_lost

def is_lost_and_told_again(known, unraisable):
    was_lost(known, unraisable)
    told_to_end()

ending._Ending.was_lost = is_lost_and_told_again
"""
)
#: Calls of C in a row, between which no handler runs: os.kill would run it itself.
BEFORE_IT_WAITS = """
import ctypes, functools, operator

class Last: ...

told_in_c = functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGTERM)
lock = threading.Lock()
lock.acquire()
"""
WAITS = "threading.Event().wait()"


@pytest.mark.parametrize(
    ("prepared", "waits"),
    [
        pytest.param(IN_A_DEL, WAITS, id="in a __del__"),
        pytest.param(IN_THE_HOOK_OF_ANOTHER_ERROR, WAITS, id="in the hook of another error"),
        pytest.param(IN_THE_HOOK_OF_ITS_OWN_ERROR, WAITS, id="in the hook of its own error"),
        pytest.param(
            BEFORE_IT_WAITS, "list(map(operator.call, (told_in_c, lock.acquire)))", id="before it waits"
        ),
    ],
)
def test_a_signal_that_comes_where_nobody_hears_it_is_not_lost(prepared: str, waits: str) -> None:
    program = TOLD_UNHEARD.format(prepared=prepared, waits=waits)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ended.stderr == "terminated by SIGTERM; this is no verdict on the run\n"
    assert ended.returncode == 128 + signal.SIGTERM


@pytest.mark.long
def test_a_full_work_directory_is_a_line(tmp_path: Path) -> None:
    clean_trace("r", rounds=6).write(tmp_path / "r")
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    with mounted([work], 300_000):
        with spawn(tmp_path / "r", work, temporary) as process:
            assert process.stdout is not None and process.stderr is not None
            said = process.stderr.read()
        assert process.returncode == 255, said
        assert f"error: no space left for tables in {work}; use another directory (--work)" in said
        assert "Traceback" not in said
        assert "Exception" not in said
        assert list(work.iterdir()) == []
    assert list(jvms_of(work)) == []


def test_a_damaged_parquet_file_is_a_line(tmp_path: Path) -> None:
    """Its ends are whole, so that only the reading of it shows the damage."""
    from chaos.trace.parquet import convert

    clean_trace("r", rounds=2).write(tmp_path / "r")
    path = convert(tmp_path / "r", remove_raw=True).path
    whole = path.read_bytes()
    footer = 8 + int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(whole[:4] + bytes(len(whole) - footer - 4) + whole[-footer:])
    work = tmp_path / "work"
    work.mkdir()
    with spawn(tmp_path / "r", work, tmp_path / "temporary") as process:
        assert process.stdout is not None and process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 254, said
    assert f"error: {path} is damaged and cannot be read" in said
    assert "Traceback" not in said
    assert list(work.iterdir()) == []
