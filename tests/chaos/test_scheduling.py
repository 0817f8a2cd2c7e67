"""A process is starved if it waited for a processor, and not if it was busy or idle itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from chaos.cluster.scheduling import HARNESS, Sample, Starved, starved_between, waited_ns
from tests.node.local import until

_MS = 1_000_000
_BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.nice(int(sys.argv[2]))
while True:
    pass
"""


def samples(elapsed_ms: int, waited_ms: int, name: str = "n1") -> tuple[Sample, Sample]:
    before = Sample(5 * _MS, {(name, 7): 3 * _MS})
    return before, Sample((5 + elapsed_ms) * _MS, {(name, 7): (3 + waited_ms) * _MS})


def test_a_process_that_waited_for_half_of_the_time_was_starved() -> None:
    assert starved_between(*samples(250, 125)) == [Starved("n1", 5 * _MS, 125 * _MS)]
    assert starved_between(*samples(250, 124)) == []


def test_a_node_is_not_starved_because_the_harness_is_late() -> None:
    assert starved_between(*samples(2_000, 100)) == []


def test_the_harness_is_starved_also_if_its_own_loop_is_late() -> None:
    assert starved_between(*samples(2_000, 100, HARNESS)) == [Starved(HARNESS, 5 * _MS, 1_750 * _MS)]
    assert starved_between(*samples(300, 10, HARNESS)) == []


def test_a_process_that_was_restarted_meanwhile_has_no_known_waiting_time() -> None:
    before, after = samples(250, 200)
    assert starved_between(before._replace(waited={("n1", 6): 0}), after) == []


@contextmanager
def busy(cpu: int, nice: int) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", _BUSY, str(cpu), str(nice)]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.process
@pytest.mark.skipif(waited_ns(os.getpid()) is None, reason="this kernel does not report waiting times")
async def test_the_kernel_reports_the_waiting_time_of_a_process_that_others_keep_from_the_processor() -> None:
    cpu = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        stack.enter_context(busy(cpu, 0))
        pid = stack.enter_context(busy(cpu, 19))
        await until(lambda: (waited_ns(pid) or 0) > 200 * _MS)
    assert waited_ns(pid) is None
