"""Which gRPC engine a process of ours runs on."""

from __future__ import annotations

import os
import subprocess
import sys

SHOW = """
import os
from dledger.node.engine import choose_engine
choose_engine()
print(os.environ.get("GRPC_EXPERIMENTS", ""))
"""


def chosen(program: str, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if key != "GRPC_EXPERIMENTS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_our_processes_choose_the_engine_before_grpc_is_imported() -> None:
    assert chosen(SHOW) in ("-event_engine_client,-event_engine_listener", "")  # "": an unknown grpc


def test_what_the_environment_says_is_left_alone() -> None:
    assert chosen(SHOW, GRPC_EXPERIMENTS="tcp_frame_size_tuning") == "tcp_frame_size_tuning"


def test_a_program_that_uses_grpc_already_is_left_alone() -> None:
    assert chosen("import grpc\n" + SHOW) == ""


def test_importing_the_client_chooses_nothing() -> None:
    show = "import os, dledger; dledger.AsyncClient; print(os.environ.get('GRPC_EXPERIMENTS', ''))"
    assert chosen(show) == ""
