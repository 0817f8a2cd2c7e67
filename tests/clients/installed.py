"""Where the released clients are installed, and how their drivers are started.

`make test-clients` puts them there; the variable ROCKETMQ_CLIENTS names another folder with `python` (a
virtual environment) and `node` (with `node_modules`) in it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

DID_NOT_RUN = "RELEASED CLIENTS DID NOT RUN"
HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("ROCKETMQ_CLIENTS") or HERE.parents[1] / "build" / "clients")
PYTHON = FOLDER / "python" / "bin" / "python"
NODE_MODULES = FOLDER / "node" / "node_modules"
#: How long clients go without a stream of telemetry: 600 for what the slowest of them does.
WITHOUT_TELEMETRY_S = float(os.environ.get("WITHOUT_TELEMETRY_S", "15"))
#: No scenario takes so long; the drivers' own waits are shorter.
SCENARIO_S = 90.0 + WITHOUT_TELEMETRY_S


def why_not(client: str) -> str:
    """Why the client cannot run here; "" if it can."""
    if client == "node" and shutil.which("node") is None:
        return "there is no `node` on PATH"
    path = PYTHON if client == "python" else NODE_MODULES / "rocketmq-client-nodejs"
    return "" if path.exists() else f"no {path} (`make clients` installs it)"


def require(client: str) -> None:
    """Skips the test that calls it, loudly, if the client is not there."""
    if reason := why_not(client):
        pytest.skip(f"{DID_NOT_RUN} with {client}: {reason}")


def command(client: str, *arguments: str) -> list[str]:
    if client == "python":
        return [str(PYTHON), str(HERE / "python_driver.py"), *arguments]
    return ["node", str(HERE / "node_driver.cjs"), *arguments]


def environment(home: Path, roots: Path | None = None) -> dict[str, str]:
    """Clients write logs to HOME. `roots`: whose certificates they believe."""
    home.mkdir(exist_ok=True)
    made = {"HOME": str(home), "PATH": os.environ["PATH"], "NODE_PATH": str(NODE_MODULES)}
    return made if roots is None else {**made, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots)}


def start(
    client: str, home: Path, address: str, scenario: str, options: dict[str, Any], *, errors: Path
) -> Popen[str]:
    """The driver on its way; its last line will be what `run` gives. It writes its errors to a file."""
    with errors.open("w") as file:
        return Popen(
            command(client, address, scenario, json.dumps(options)),
            env=environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )


def run(
    client: str,
    home: Path,
    address: str,
    scenario: str,
    options: dict[str, Any],
    *,
    roots: Path | None = None,
) -> Any:
    """What the driver prints in the end: a JSON object."""
    done = subprocess.run(
        command(client, address, scenario, json.dumps(options)),
        env=environment(home, roots),
        capture_output=True,
        text=True,
        check=False,
        timeout=SCENARIO_S,
    )
    assert done.returncode == 0, f"{scenario}: {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])
