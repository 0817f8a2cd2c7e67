"""The wheel, installed outside the checkout, contains all that its commands need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if name.split("/")[0] not in ("tests", "docs", "benchmarks"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Could not find a version" in done.stderr or "No matching distribution" in done.stderr:
        pytest.skip(f"THE WHEEL WAS NOT BUILT: no package index can be reached: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the commands. The dependencies are those of the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "venv/lib" / version / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel], check=True
    )
    yield folder / "venv/bin"


def run(command: Path, *arguments: str, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [command, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_contains_the_packages_their_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        facts = Parser().parsestr(archive.read(metadata).decode())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"dledger", "broker_adapter", "chaos", metadata.split("/")[0]}
    missing = {
        str(path.relative_to(ROOT))
        for package in ("dledger", "broker_adapter", "chaos")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } - names
    assert not missing
    assert {"checker", "java", "parquet", "pytest", "tls-tools"} <= set(facts.get_all("Provides-Extra", []))


def test_its_commands_run_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = "import dledger as d, broker_adapter as b, chaos as c; print(d.__file__, b.__file__, c.__file__)"
    places = run(installed / "python", "-c", where, cwd=tmp_path).split()
    assert all(Path(place).is_relative_to(installed.parent) for place in places)
    for name in ("dledger", "dledger-namesrv", "dledger-chaos", "dledger-check"):
        assert "Usage:" in run(installed / name, "--help", cwd=tmp_path)
    assert "rolling" in run(installed / "dledger-chaos", "list", cwd=tmp_path)


@pytest.mark.process
def test_its_broker_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = """
from pathlib import Path
from broker_adapter.client import BlockingProducer, Message
from broker_adapter.testing import DevProcess
import json
with DevProcess(Path("dev")) as broker, BlockingProducer("p", broker.name_server) as producer:
    print(json.dumps(producer.send(Message("t", b"x")).queue_offset))
"""
    assert json.loads(run(installed / "python", "-c", code, cwd=tmp_path)) == 0
