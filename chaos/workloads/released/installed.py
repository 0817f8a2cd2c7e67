"""Where the released Python client of RocketMQ 5 is installed."""

from __future__ import annotations

import os
from pathlib import Path

from dledger.errors import ConfigError

#: Names a folder with `python`, a virtual environment, in it; `make clients` makes one.
VARIABLE = "ROCKETMQ_CLIENTS"
_USUAL = Path(__file__).resolve().parents[3] / "build" / "clients"


def client_python(named: Path | None = None) -> Path:
    """The interpreter that has the client. `named`: the one that the user wants. ConfigError: there is none;
    it says how to get one."""
    if named is None:
        named = Path(os.environ.get(VARIABLE) or _USUAL) / "python" / "bin" / "python"
    if not os.access(named, os.X_OK):
        raise ConfigError(
            f"no released client of RocketMQ 5: there is no {named}. `make clients` installs one; "
            f"{VARIABLE} or --client-python name another place"
        )
    return named
