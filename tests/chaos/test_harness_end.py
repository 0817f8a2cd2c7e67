"""When the harness ends, however it does, so do the nodes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("chaos-cluster")]

PROGRAM = """
import asyncio, sys
from pathlib import Path
from random import Random
from chaos.cluster.cluster import ChaosCluster

async def main():
    async with await ChaosCluster.create(Path(sys.argv[1]), nodes=1, rng=Random(1)) as cluster:
        print(cluster.local.process("n1").pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_harness_ends(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        node = os.pidfd_open(pid)
        harness.send_signal(number)
    try:
        assert select.select([node], [], [], 20)[0], "the node is gone"
    finally:
        os.close(node)
