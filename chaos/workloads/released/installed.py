"""Locations of the installed RocketMQ 5 clients, and the commands that start their drivers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dledger.errors import ConfigError

#: Environment variable that names a folder to use instead of the one `make clients` creates. The folder holds
#: `python`, a virtual environment, and `node`, which has `node_modules`.
VARIABLE = "ROCKETMQ_CLIENTS"
_HERE = Path(__file__).resolve().parent
#: Concurrent calls of a Python client, each in its own thread.
_THREADS = 16
_USUAL = _HERE.parents[2] / "build" / "clients"


@dataclass(frozen=True, slots=True)
class ClientKind:
    """One client implementation. `command` starts its driver. The node addresses are appended: all of them,
    or a single one if `takes_one_address`."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    takes_one_address: bool = False


def client_kinds() -> list[ClientKind]:
    """Return the Python client, and the Node.js client if it is installed. Raises ConfigError like
    `client_python`."""
    python = [str(client_python()), str(_HERE / "driver.py"), str(_THREADS)]
    kinds = [ClientKind("python", python)]
    node, modules = shutil.which("node"), _folder() / "node" / "node_modules"
    if node is not None and (modules / "rocketmq-client-nodejs").exists():
        command, environment = [node, str(_HERE / "driver.cjs")], {"NODE_PATH": str(modules)}
        kinds.append(ClientKind("node", command, environment, takes_one_address=True))
    return kinds


def client_python() -> Path:
    """Return the interpreter that has the client. Raises ConfigError with instructions if it is missing."""
    python = _folder() / "python" / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise ConfigError(
            f"the released RocketMQ 5 client is not installed ({python} does not exist); run `make clients`, "
            f"or set {VARIABLE} to its folder"
        )
    return python


def _folder() -> Path:
    return Path(os.environ.get(VARIABLE) or _USUAL)
