"""What a process of ours tells gRPC, and which threads numpy has there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ALGEBRA = "OPENBLAS_NUM_THREADS"
VERBOSITY = "GRPC_VERBOSITY"
CONFIGURE = """
from dledger.infra.libraries import configure_libraries
configure_libraries()
"""


def chosen(variable: str, program: str, **environment: str) -> str:
    program += f"\nimport os; print(os.environ.get('{variable}', ''))"
    clean = {key: value for key, value in os.environ.items() if key not in (ALGEBRA, VERBOSITY)}
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


def test_what_the_environment_says_is_left_alone() -> None:
    assert chosen(ALGEBRA, CONFIGURE, OPENBLAS_NUM_THREADS="3") == "3"


def test_importing_the_client_chooses_nothing() -> None:
    use = "import dledger; dledger.AsyncClient"
    assert chosen(VERBOSITY, use) == chosen(ALGEBRA, use) == ""
