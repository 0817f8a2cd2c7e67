"""Where the released Python client of RocketMQ 5 is installed."""

from __future__ import annotations

import os
from pathlib import Path

from dledger.errors import ConfigError

#: Names another folder than that of `make clients`, with `python`, a virtual environment, in it.
VARIABLE = "ROCKETMQ_CLIENTS"
_USUAL = Path(__file__).resolve().parents[3] / "build" / "clients"


def client_python() -> Path:
    """The interpreter that has the client. ConfigError: there is none; it says how to get one."""
    found = Path(os.environ.get(VARIABLE) or _USUAL) / "python" / "bin" / "python"
    if not os.access(found, os.X_OK):
        raise ConfigError(
            f"the released client of RocketMQ 5 is not installed: there is no {found}; `make clients` "
            f"installs it, and the variable {VARIABLE} names another folder"
        )
    return found
