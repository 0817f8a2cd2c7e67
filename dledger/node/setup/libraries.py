"""How our own processes use gRPC and numpy. Both read it from the environment when they are imported."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

# gRPC's newer "event engine" receives on threads of its own and hands every message to the thread that Python
# waits on: one hand-over between threads more, on each side of each message. With small messages that are
# answered one by one that is most of the time. The older engine is still there; a server of ours, 1 KiB in
# flight one at a time, answers in 0.87 of the time with it, and 64 at once or in batches of 256 gain a tenth
# (benchmarks/RECORD.md).
_ENGINE = "GRPC_EXPERIMENTS"
_OLDER_ENGINE = "-event_engine_client,-event_engine_listener"
#: Both names exist in these versions. Elsewhere gRPC would complain about a name that it does not know.
_KNOWN = ((1, 76), (1, 85))

# numpy starts a thread for each CPU, for linear algebra that nobody here does; that is half of what
# importing it costs.
_ALGEBRA_THREADS = "OPENBLAS_NUM_THREADS"


def silence_grpc() -> None:
    """To be called before grpc is imported, unless somebody has chosen already. It writes to stderr
    whenever a client does something wrong, however often; what matters is in statuses and errors, too."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def configure_libraries() -> None:
    """To be called before grpc and numpy are imported: gRPC's older engine, no lines of it on stderr, and no
    threads of numpy's, in this process and its children, unless somebody has chosen already.

    Not for a library to decide: programs that import `dledger` as a client keep what they have.
    """
    silence_grpc()
    os.environ.setdefault(_ALGEBRA_THREADS, "1")
    if "grpc" in sys.modules or _ENGINE in os.environ:
        return
    major, minor = version("grpcio").split(".")[:2]
    if _KNOWN[0] <= (int(major), int(minor)) <= _KNOWN[1]:
        os.environ[_ENGINE] = _OLDER_ENGINE
