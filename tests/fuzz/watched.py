"""Runs inputs in a child process that is watched from outside: by time and by memory.

An endless loop, also one within a C function, and an allocation without an end would take the fuzzer with
them else. The child says in shared memory what it is about to decode; whoever takes too long is killed, and
leaves the input there.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import resource
import signal
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from select import poll
from typing import Any

from tests.fuzz.files import folder
from tests.fuzz.target import Target

#: Of CPU time, so that a busy machine is no find.
LIMIT_S = 2.0
#: For an input that waits for something.
WALL_LIMIT_S = 30.0
#: What an input may take beyond what the process has before it.
MEMORY_BYTES = 256 << 20
_ROOM = 1 << 20
_LOOK_MS = 100
_HEAD = struct.Struct(">QI")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Find:
    """An input that a decoder should have taken or refused, and what it did instead."""

    target: str
    data: bytes
    problem: str


@dataclass(frozen=True)
class Slice:
    """What came of a run. `kept`: inputs with a new outcome."""

    inputs: int
    refused: int
    kept: list[bytes]
    finds: list[Find]


def outcome_of(target: Target, data: bytes) -> tuple[str, Find | None]:
    """A short name of what the decoder made of an input, the same for inputs that went the same way, and the
    find if it is one."""
    try:
        target.decode(data)
    except target.refusals as error:
        return _way(error), None
    except MemoryError:
        return "memory", Find(target.name, data, f"more than {MEMORY_BYTES >> 20} MiB of memory")
    except Exception as error:
        text = "".join(traceback.format_exception(error, limit=-6))
        return _way(error), Find(target.name, data, text)
    return "taken", None


def _way(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return f"{type(error).__name__} " + " ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[-8:])


Inputs = Callable[[list[bytes]], Iterator[bytes]]


def run(target: Target, inputs: Inputs) -> Slice:
    """Decode the inputs in a child. `inputs` is given a list to which those are added that had a new outcome.

    Ends with the first find, of which the caller has to see how it goes on.
    """
    folder()  # before the fork, so that a child that is killed leaves nothing
    with mmap.mmap(-1, _HEAD.size + _ROOM) as shared, tempfile.TemporaryFile() as results:
        child = os.fork()
        if child == 0:
            _child(target, inputs, shared, results)
        fault = _watch(child, shared)
        results.seek(0)
        content = results.read()
        if fault is None and content:
            found = pickle.loads(content)
            if isinstance(found, str):
                raise RuntimeError(f"{target.name}: its inputs cannot be made:\n{found}")
            assert isinstance(found, Slice)
            return found
        number, size = _HEAD.unpack_from(shared)
        data = shared[_HEAD.size : _HEAD.size + size]
        return Slice(number, 0, [], [Find(target.name, data, fault or "the process ended")])


def _child(target: Target, inputs: Inputs, shared: mmap.mmap, results: Any) -> None:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # decoders log what they refuse
        # A full collection of what the parent has made would copy all its pages, at the cost of one input.
        gc.freeze()
        _limit_memory()
        try:
            found: Slice | str = _decode_all(target, inputs, shared)
        except Exception:
            found = traceback.format_exc()
        results.write(pickle.dumps(found))
        results.flush()
        code = 0
    finally:
        os._exit(code)


def _decode_all(target: Target, inputs: Inputs, shared: mmap.mmap) -> Slice:
    seen: set[str] = set()
    kept: list[bytes] = []
    pool: list[bytes] = []
    finds: list[Find] = []
    count = refused = 0
    for data in inputs(pool):
        count += 1
        size = min(len(data), _ROOM)
        shared[_HEAD.size : _HEAD.size + size] = data[:size]
        _HEAD.pack_into(shared, 0, count, size)
        outcome, find = outcome_of(target, data)
        if find is not None:
            finds.append(find)
            break
        refused += outcome != "taken"
        if outcome not in seen:
            seen.add(outcome)
            if outcome != "taken":
                kept.append(data)
                pool.append(data)
    return Slice(count, refused, kept, finds)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _watch(child: int, shared: mmap.mmap) -> str | None:
    """Until the child ends; None if it did so unasked and well. What is wrong else."""
    ended = os.pidfd_open(child)
    watcher = poll()
    watcher.register(ended)
    last, cpu_s, waited_s = -1, 0.0, 0.0
    try:
        while not watcher.poll(_LOOK_MS):
            number = _HEAD.unpack_from(shared)[0]
            now_s = _cpu_s(child)
            if number != last:
                last, cpu_s, waited_s = number, now_s, 0.0
                continue
            waited_s += _LOOK_MS / 1000
            if now_s - cpu_s > LIMIT_S or waited_s > WALL_LIMIT_S:
                os.kill(child, signal.SIGKILL)
                return (
                    f"more than {LIMIT_S:g} s"
                    if now_s - cpu_s > LIMIT_S
                    else f"{WALL_LIMIT_S:g} s of waiting"
                )
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(ended)
        _, status = os.waitpid(child, 0)
    return None if status == 0 else f"the process ended with {os.waitstatus_to_exitcode(status)}"


def _cpu_s(process: int) -> float:
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0
