"""Lives of a Dispatcher with an index of delayed messages, in processes that are killed at its calls.

python -m tests.broker_adapter.scheduled.killed_lives FOLDER KIND NUMBER [NUMBER]...: for each number one
history of lives over one directory, each in a process of its own. KIND:
`each`    SIGKILL before the call of this number, and then in its middle. 0: none; prints how many there are.
`random`  the number is a seed; several lives end somewhere, and files are synced by another thread.
`early`   so many lives end before the first checkpoint that they would make.

The commands of the log are always the same. Each life compares what it finds with a node that never ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

from broker_adapter.delivery_state.commands import Carry, Defer, DeferredKind, Element, EndDeferred, Ending
from broker_adapter.delivery_state.records import encode
from broker_adapter.metadata.commands import DeleteTopic, PutTopic
from broker_adapter.metadata.records import encode as encode_metadata
from broker_adapter.scheduled import delay_file
from broker_adapter.scheduled.delay_file import FILE_NAME, DelayFile
from broker_adapter.store.job_queue import JobQueue, ThreadJobQueue
from dledger.infra.files.disk import OsDisk
from tests.broker_adapter.store.helpers import SMALL, InlineJobQueue, Log
from tests.broker_adapter.store.poison import DELIVERY, Replica, metadata_commands
from tests.process.sqlite_calls import kill_at

#: Changes that are written at once, and entries that are applied at once: few, so that short lives have all.
_BATCH, _STEP = 3, 2
_ENTRIES = 60
#: A checkpoint comes after some entries, unless one is being made.
_CHECKPOINT_BYTES = 2_500
#: A write-ahead log is begun anew after so many bytes, at the next checkpoint.
LOG_BYTES = 40_000
#: More than one life writes to it, without any checkpoint.
_ONE_LIFE = 650_000
_DEFER = Defer(DeferredKind.DELAYED, "T", 0, 0, b"", "", "", 0, 0, 5, b"\x0a\0\0\1\0\0\0\5", "", b"body")


@cache
def the_log() -> Log:
    """Delayed messages come, are carried along, are ended, some twice; topics are deleted with what waits."""
    rng, log = Random(5), Log()
    for command in metadata_commands()[:2]:
        log.command(encode_metadata(command))
    known: list[int] = []
    while len(log.entries) < _ENTRIES:
        if rng.random() < 0.05:
            topic = rng.choice([DeleteTopic("U"), metadata_commands()[1]])
            assert isinstance(topic, DeleteTopic | PutTopic)
            log.command(encode_metadata(topic))
            continue
        kinds = [rng.choice("dddce") for _ in range(rng.randint(1, 3))]
        elements: list[Element] = []
        for kind in kinds:
            number = rng.choice(known[-9:] or [7])
            if kind == "d":
                elements.append(_DEFER._replace(topic=rng.choice("TU"), due_ms=rng.randrange(1 << 40)))
            else:
                is_end = kind == "e"
                elements.append(EndDeferred(number, Ending.MOVED) if is_end else Carry(number, _DEFER))
        entry = log.message(DELIVERY, body=encode(elements))
        known += [(entry.index << 16) + place for place, kind in enumerate(kinds) if kind == "d"]
    return log


@cache
def images() -> dict[int, bytes]:
    """Of a node that never ended, by the index of the last entry that it has applied."""
    whole = Replica()
    found = {-1: b""}
    whole.start()
    for entry in the_log().entries:
        whole.dispatcher.apply([entry])
        found[entry.index] = whole.image()
    return found


class _Disk(OsDisk):
    """No machine crashes."""

    def fdatasync(self, handle: int) -> None: ...

    def sync_directory(self, path: Path) -> None: ...


class _Wrong(Exception):
    """What a life found is not what it should have."""


def _live(
    folder: Path,
    jobs: Callable[[str, int], JobQueue],
    begun: Callable[[], None],
    checkpoint_bytes: int = _CHECKPOINT_BYTES,
) -> None:
    """One life: recover, compare, apply the rest, compare. `begun` before files are touched."""
    options = replace(SMALL, checkpoint_interval_s=1e9, checkpoint_bytes=checkpoint_bytes)
    delay_file._LOG_BYTES = LOG_BYTES
    index = DelayFile(folder / FILE_NAME, synchronous="OFF", batch=_BATCH)
    begun()
    replica = Replica(_Disk(), index, root=folder, options=options, job_queue=jobs)
    had_checkpoint = (folder / "derived_checkpoint").exists()
    known = replica.start()
    if had_checkpoint and known < 0:
        raise _Wrong("files that nothing happened to are not believed")
    if known >= 0 and replica.image() != images()[known]:
        raise _Wrong(f"at {known} it has another state")
    entries = [entry for entry in the_log().entries if entry.index > known]
    for at in range(0, len(entries), _STEP):
        replica.dispatcher.apply(entries[at : at + _STEP])
    if replica.image() != images()[entries[-1].index if entries else known]:
        raise _Wrong(f"from {known} on it comes to another state")
    replica.dispatcher.close()


def _in_a_process(work: Callable[[], None]) -> int:
    """How it ended: an exit code, or less a signal."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work()
    except BaseException as error:
        print(f"{error!r}", file=sys.stderr, flush=True)
        os._exit(3)
    sys.stdout.flush()
    os._exit(0)


def _life(
    folder: Path, number: int, *, torn: bool = False, threads: bool = False, tell: bool = False, **more: int
) -> bool:
    """False: it was killed. AssertionError: it found something wrong."""

    def work() -> None:
        calls: list[Callable[[], int]] = []
        jobs: Callable[[str, int], JobQueue] = ThreadJobQueue if threads else InlineJobQueue
        _live(folder, jobs, lambda: calls.append(kill_at(number, torn=torn)), **more)
        if tell:
            print(calls[0]())

    end = _in_a_process(work)
    assert end in (0, -signal.SIGKILL), f"life with a kill at {number}{' torn' * torn}: see above"
    log = Path(f"{folder / FILE_NAME}-wal")
    assert not log.exists() or log.stat().st_size < LOG_BYTES + _ONE_LIFE, f"{log.stat().st_size} bytes"
    return end == 0


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def at_each(folder: Path, number: int) -> None:
    for torn in (False, True) if number else (False,):
        life = _fresh(folder / "life")
        was_killed = not _life(life, number, torn=torn, threads=False, tell=not number)
        assert was_killed == (number > 0)
        assert _life(life, 0)


def at_random(folder: Path, seed: int) -> None:
    rng, life = Random(seed), _fresh(folder / "life")
    for _ in range(12):
        most = rng.choice([10, 60, 400])
        _life(life, rng.randint(1, most), torn=rng.random() < 0.5, threads=rng.random() < 0.7)
    _life(life, 0, torn=False, threads=True)


def at_an_early_call(folder: Path, count: int) -> None:
    """All but the first."""
    life = _fresh(folder / "life")
    assert not _life(life, 200)
    assert (life / "derived_checkpoint").exists()
    for _ in range(count):
        assert not _life(life, 130, checkpoint_bytes=1 << 40)
    assert _life(life, 0)


def main(arguments: Sequence[str]) -> None:
    folder, kind, *numbers = arguments
    images()
    for number in map(int, numbers):
        _KINDS[kind](Path(folder), number)


_KINDS = {"each": at_each, "random": at_random, "early": at_an_early_call}

if __name__ == "__main__":
    main(sys.argv[1:])
