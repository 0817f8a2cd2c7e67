"""What a process of ours tells gRPC, and which threads numpy has there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ALGEBRA = "OPENBLAS_NUM_THREADS"
VERBOSITY = "GRPC_VERBOSITY"
EXPERIMENTS = "GRPC_EXPERIMENTS"
CONFIGURE = """
from dledger.infra.libraries import configure_libraries
configure_libraries()
"""


def chosen(variable: str, program: str, **environment: str) -> str:
    program += f"\nimport os; print(os.environ.get('{variable}', ''))"
    clean = {key: value for key, value in os.environ.items() if key not in (ALGEBRA, VERBOSITY, EXPERIMENTS)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_our_processes_have_no_threads_for_algebra() -> None:
    one_thread = "import numpy, os; assert len(os.listdir('/proc/self/task')) == 1"
    assert chosen(ALGEBRA, CONFIGURE + one_thread) == "1"


@pytest.mark.parametrize(
    "program", [CONFIGURE, "from dledger.infra.libraries import silence_grpc; silence_grpc()"]
)
def test_grpc_writes_nothing_by_itself(program: str) -> None:
    """A line for each wrong call of a client would fill the log."""
    assert chosen(VERBOSITY, "import sys\n" + program + "\nassert 'grpc' not in sys.modules") == "NONE"
    assert chosen(VERBOSITY, program, GRPC_VERBOSITY="DEBUG") == "DEBUG"


NODE = """
from dledger.infra.libraries import configure_node_channels
configure_node_channels()
"""


def test_calls_of_a_node_use_the_older_engine_of_grpc_and_its_ports_do_not() -> None:
    assert chosen(EXPERIMENTS, NODE) == "-event_engine_client"
    assert chosen(EXPERIMENTS, NODE, GRPC_EXPERIMENTS="-event_engine_listener") == "-event_engine_listener"
    assert chosen(EXPERIMENTS, CONFIGURE) == ""


def test_the_server_command_chooses_before_grpc_is_imported() -> None:
    program = """
import sys
from unittest import mock
from dledger.infra import libraries
from dledger.cli.main import main

def choose():
    assert "grpc" not in sys.modules
    real()

real = libraries.configure_node_channels
with mock.patch("dledger.cli.server_commands.configure_node_channels", choose):
    sys.argv = ["dledger", "server", "--config", "/dev/null"]
    try:
        main()
    except SystemExit:
        pass
"""
    assert chosen(EXPERIMENTS, program) == "-event_engine_client"


def test_what_the_environment_says_is_left_alone() -> None:
    assert chosen(ALGEBRA, CONFIGURE, OPENBLAS_NUM_THREADS="3") == "3"


def test_importing_the_client_chooses_nothing() -> None:
    use = "import dledger; dledger.AsyncClient"
    assert chosen(VERBOSITY, use) == chosen(ALGEBRA, use) == ""
