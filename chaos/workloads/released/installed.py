"""Where the released clients of RocketMQ 5 are installed, and how their drivers are started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dledger.errors import ConfigError

#: Names another folder than that of `make clients`. In it: `python`, a virtual environment, and `node`, which
#: has `node_modules`.
VARIABLE = "ROCKETMQ_CLIENTS"
_HERE = Path(__file__).resolve().parent
#: Calls that a Python client makes at the same time, each in a thread of its own.
_THREADS = 16
_USUAL = _HERE.parents[2] / "build" / "clients"


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the clients. `command`: of its driver, to which the addresses of the nodes are added, or if it
    takes one only, that of one of them."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    takes_one_address: bool = False


def client_kinds() -> list[Kind]:
    """The Python client, and that for Node.js if it is there. ConfigError as `client_python`."""
    python = [str(client_python()), str(_HERE / "driver.py"), str(_THREADS)]
    found = [Kind("python", python)]
    node, modules = shutil.which("node"), _folder() / "node" / "node_modules"
    if node is not None and (modules / "rocketmq-client-nodejs").exists():
        command, environment = [node, str(_HERE / "driver.cjs")], {"NODE_PATH": str(modules)}
        found.append(Kind("node", command, environment, takes_one_address=True))
    return found


def client_python() -> Path:
    """The interpreter that has the client. ConfigError: there is none; it says how to get one."""
    found = _folder() / "python" / "bin" / "python"
    if not os.access(found, os.X_OK):
        raise ConfigError(
            f"the released client of RocketMQ 5 is not installed: there is no {found}; `make clients` "
            f"installs it, and the variable {VARIABLE} names another folder"
        )
    return found


def _folder() -> Path:
    return Path(os.environ.get(VARIABLE) or _USUAL)
