"""examples/orders-java and examples/orders-go, as programmers run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import genuine

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.xdist_group("example-projects")]
ROOT = Path(__file__).resolve().parents[2]
#: The directory with the command `dledger`, which the projects find on PATH.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run(project: Path, *command: str) -> str:
    """Run the tests of a project, and return their output. Skips the test, loudly, without the tool."""
    if not shutil.which(command[0]):
        pytest.skip(f"{genuine.DID_NOT_RUN}: there is no `{command[0]}` on PATH")
    done = subprocess.run(command, cwd=project, env=ENVIRONMENT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    return done.stdout


def test_the_java_project(tmp_path: Path) -> None:
    run(ROOT / "examples/orders-java", "mvn", "--quiet", "--batch-mode", f"-Doutput={tmp_path}", "test")
    [report] = (tmp_path / "surefire-reports").glob("*.txt")
    assert "Tests run: 1, Failures: 0, Errors: 0, Skipped: 0" in report.read_text()


def test_the_go_project() -> None:
    assert "PASS: TestAnOrderIsReceived" in run(ROOT / "examples/orders-go", "go", "test", "-count=1", "-v")


def test_the_java_class_of_the_documentation_compiles(tmp_path: Path) -> None:
    [code] = re.findall(r"```java\n(.*?)```", (ROOT / "docs/dev.md").read_text(), re.DOTALL)
    source = tmp_path / "src/main/java/BrokerContainer.java"
    source.parent.mkdir(parents=True)
    source.write_text(code)
    shutil.copy(Path(__file__).with_name("testcontainers") / "pom.xml", tmp_path)
    run(tmp_path, "mvn", "--quiet", "--batch-mode", "compile")
    assert (tmp_path / "target/classes/BrokerContainer.class").exists()
