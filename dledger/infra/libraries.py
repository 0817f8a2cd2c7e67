"""Environment settings for gRPC and numpy, which read them at import time."""

from __future__ import annotations

import os

# numpy starts a thread per CPU for linear algebra, which this project does not use. Starting them takes half
# of its import time.
_ALGEBRA_THREADS = "OPENBLAS_NUM_THREADS"
_EXPERIMENTS = "GRPC_EXPERIMENTS"


def silence_grpc() -> None:
    """Silence gRPC on stderr, unless the environment configures its logging. Call this before grpc is
    imported.

    gRPC writes a line for every client error, without a limit; statuses and exceptions carry the same
    information."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def configure_libraries() -> None:
    """Configure gRPC and numpy, unless the environment configures them. Call this before either is imported.

    In this process and its children, gRPC writes no lines to stderr and numpy starts no threads. Only
    programs call it, never the library: a program that imports `dledger` as a client keeps its own settings.
    """
    silence_grpc()
    os.environ.setdefault(_ALGEBRA_THREADS, "1")


def configure_node_channels() -> None:
    """Let a node's calls to other members use gRPC's older I/O engine, unless the environment chooses. Call
    this before grpc is imported.

    With it, the thread that waits for a response also receives it, which saves a quarter of the leader's
    thread wake-ups for an append. Ports keep the newer engine: with the older one, two connections that flood
    a port could cost a leader its leadership (docs/limits.md).
    """
    os.environ.setdefault(_EXPERIMENTS, "-event_engine_client")
