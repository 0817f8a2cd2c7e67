"""Helpers for tests of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import dledger
from dledger.cli.local.local_cluster import LocalCluster
from dledger.cli.main import cli
from tests.node.local import PATIENT

#: Small enough to copy, large enough for the default limits.
DATA_FILE_SIZE = 2 << 20


def heed_interrupts() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and children would inherit that: of a
    handler they inherit the default. (Not in the child: what Python runs there before the program needs a
    fork, which gRPC's threads do not bear.)"""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Command:
    """Runs `dledger` commands: in this process, or as real ones."""

    root: click.Command = cli

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self.environment = environment or {}

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int | None = 0) -> Result:
        result = CliRunner().invoke(self.root, arguments, input=stdin, env=self.environment)
        if code is not None:
            assert result.exit_code == code, (
                f"exit code {result.exit_code}\n{result.output}\n{result.exception!r}"
            )
        return result

    @contextmanager
    def spawn(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A real process with pipes to all its streams. It does not outlive the block."""
        heed_interrupts()
        with subprocess.Popen(
            self.line(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.process_environment,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def line(self, *arguments: str) -> list[str]:
        """The command line of a real process."""
        return [sys.executable, "-P", "-m", "dledger.cli", *arguments]

    @property
    def process_environment(self) -> dict[str, str]:
        package = Path(dledger.__file__ or "").parent.parent
        return {**os.environ, "PYTHONPATH": str(package), **self.environment}


@pytest.fixture
def command() -> Command:
    return Command()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three running nodes with a leader, shared by the tests of a module, which leave them running."""
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster.create(
        directory, nodes=3, base_port=0, data_file_size=DATA_FILE_SIZE, settings={"timing": PATIENT}
    ) as cluster:
        cluster.start()
        cluster.wait_for_all()
        yield cluster


@pytest.fixture
def on_cluster(cluster: LocalCluster) -> Command:
    return Command({"DLEDGER_SERVERS": ",".join(cluster.addresses)})
