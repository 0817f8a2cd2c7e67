"""How our own processes use gRPC and numpy. Both read it from the environment when they are imported."""

from __future__ import annotations

import os

# numpy starts a thread for each CPU, for linear algebra that nobody here does; that is half of what
# importing it costs.
_ALGEBRA_THREADS = "OPENBLAS_NUM_THREADS"


def silence_grpc() -> None:
    """To be called before grpc is imported, unless somebody has chosen already. It writes to stderr
    whenever a client does something wrong, however often; what matters is in statuses and errors, too."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def configure_libraries() -> None:
    """To be called before grpc and numpy are imported: no lines of gRPC on stderr, and no threads
    of numpy's, in this process and its children, unless somebody has chosen already.

    Not for a library to decide: programs that import `dledger` as a client keep what they have.
    """
    silence_grpc()
    os.environ.setdefault(_ALGEBRA_THREADS, "1")
