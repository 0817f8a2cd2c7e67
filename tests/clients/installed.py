"""Where the released clients are installed, and how their drivers are started.

`make test-clients` puts them there; the variable ROCKETMQ_CLIENTS names another folder with `python` (a
virtual environment), `node` (with `node_modules`), `java` and `go` (with our drivers for them) in it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

DID_NOT_RUN = "RELEASED CLIENTS DID NOT RUN"
HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("ROCKETMQ_CLIENTS") or HERE.parents[1] / "build" / "clients")
PYTHON = FOLDER / "python" / "bin" / "python"
NODE_MODULES = FOLDER / "node" / "node_modules"
JAVA = FOLDER / "java"
GO = FOLDER / "go" / "driver"
CLIENTS = ("python", "node", "java", "go")
#: The oldest Java client that works: with the driver that was compiled for the newest.
OLDEST_JAVA = "java-oldest"
#: With which names the scenarios' topics and groups begin.
NAMES = {"python": "py", "node": "node", "java": "java", OLDEST_JAVA: "java-oldest", "go": "go"}
#: How long clients go without a stream of telemetry: 600 for what the slowest of them does.
WITHOUT_TELEMETRY_S = float(os.environ.get("WITHOUT_TELEMETRY_S", "15"))
#: No scenario takes so long; the drivers' own waits are shorter.
SCENARIO_S = 90.0 + WITHOUT_TELEMETRY_S


def why_not(client: str) -> str:
    """Why the client cannot run here; "" if it can."""
    tool = {"node": "node", "java": "java", OLDEST_JAVA: "java"}.get(client)
    if tool is not None and shutil.which(tool) is None:
        return f"there is no `{tool}` on PATH"
    path = {
        "python": PYTHON,
        "node": NODE_MODULES / "rocketmq-client-nodejs",
        "java": JAVA / "lib",
        OLDEST_JAVA: JAVA / "oldest",
        "go": GO,
    }[client]
    return "" if path.exists() else f"no {path} (`make clients` installs it)"


def require(client: str) -> None:
    """Skips the test that calls it, loudly, if the client is not there."""
    if reason := why_not(client):
        pytest.skip(f"{DID_NOT_RUN} with {client}: {reason}")


def command(client: str, *arguments: str) -> list[str]:
    if client == "python":
        return [str(PYTHON), str(HERE / "python_driver.py"), *arguments]
    if client == "node":
        return ["node", str(HERE / "node_driver.cjs"), *arguments]
    program = json.dumps([str(GO)] if client == "go" else _java(client))
    return [sys.executable, str(HERE / "remote_driver.py"), NAMES[client], program, *arguments]


def _java(client: str) -> list[str]:
    """Of two clients on the class path the first one counts."""
    jars = [JAVA / "oldest" / "*"] if client == OLDEST_JAVA else []
    places = ":".join(map(str, (JAVA / "classes", *jars, JAVA / "lib" / "*")))
    # Started quickly, with a heap that messages of 4 MiB fit into.
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-Duser.home={home}"]
    return ["java", *options, "-cp", places, "clients.Driver"]


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
