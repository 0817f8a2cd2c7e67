"""Compile the stand-ins and run classes of RocketMQ's integration tests.

`make interop-suite` fetches the tests, as compiled classes, and the jars that they need.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop import genuine

from .reasons import NOT_RUN
from .servers import serving

SUITE = Path(os.environ.get("ROCKETMQ_SUITE") or Path(__file__).resolve().parents[3] / "build/interop/suite")
PACKAGE = "org.apache.rocketmq.test."
CLASS_LIMIT_S = 600
_TEST_CLASS = re.compile(r"org/apache/rocketmq/test/[\w/]+(IT|Test)\.class")
#: A base class of tests, whose name looks like a test.
_BASE = "grpc.v2.GrpcBaseIT"
#: Classes that restart brokers or change static state of RocketMQ's classes, which disturbs other classes.
ALONE = ("smoke.NormalMessageSendAndRecvIT", "grpc.v2.ClusterGrpcIT", "grpc.v2.LocalGrpcIT")
_LINE_MARK = "@ "


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test. `name`: of the class, without PACKAGE. `status`: as in Run.java."""

    name: str
    test: str
    status: str
    seconds: float
    error: str


def missing() -> str:
    """Return the reason why the tests cannot run here, or "" if they can."""
    for command in ("java", "javac"):
        if not shutil.which(command):
            return f"there is no `{command}` on PATH"
    if not _tests_jar():
        return f"no jars in {SUITE / 'lib'} (`make interop-suite` fetches them from Maven Central)"
    return ""


def _tests_jar() -> Path | None:
    return next((SUITE / "lib").glob("rocketmq-test-*-tests.jar"), None)


def all_classes() -> list[str]:
    """Return the names of all test classes in the jar that use servers, without PACKAGE, sorted."""
    jar = _tests_jar()
    assert jar is not None, missing()
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if _TEST_CLASS.fullmatch(name)]
    short = (name.removesuffix(".class").replace("/", ".").removeprefix(PACKAGE) for name in names)
    return sorted(name for name in short if name != _BASE and name not in NOT_RUN)


def run(
    home: Path, names: Sequence[str], store: str, parallel: int, report: Callable[[Result], None]
) -> list[Result]:
    """Run the classes with new servers in `home`, and return the results in the order of their ends.

    `parallel`: number of classes that run side by side. `report` receives each result when it is known.
    """
    together = [name for name in names if name not in ALONE]
    alone = [name for name in names if name in ALONE]
    path = _compile(home)
    results = []
    for part, threads in ((together, parallel), (alone, 1)):
        if part:
            folder = home / f"{len(results)}"
            for result in _run_part(folder, path, part, store, threads):
                report(result)
                results.append(result)
    return results


def _compile(home: Path) -> str:
    """Compile the stand-ins and return the class path, in which they precede RocketMQ's classes.

    RocketMQ's proxy needs its configuration as files, so the jar with the tests is unpacked.
    """
    ours, tests, lib = home / "stand-ins", home / "tests", SUITE / "lib"
    ours.mkdir(parents=True)
    jar = _tests_jar()
    assert jar is not None, missing()
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(tests)
    jars = sorted(str(one) for one in lib.glob("*.jar") if one != jar)
    path = os.pathsep.join([str(ours), str(tests), *jars])
    sources = sorted(Path(__file__).parent.glob("*.java"))
    subprocess.run(
        ["javac", "-nowarn", "-XDignore.symbol.file", "-cp", path, "-d", ours, *sources], check=True
    )
    return path


def _run_part(folder: Path, path: str, names: Sequence[str], store: str, parallel: int) -> Iterator[Result]:
    folder.mkdir()
    with serving(folder / "servers", store) as port:
        classes = [PACKAGE + name for name in names]
        command, environment = genuine.java(
            folder, path, f"{PACKAGE}base.Run", str(parallel), str(CLASS_LIMIT_S), *classes
        )
        command[1:1] = [f"-Dsuite.control={port}", f"-Djava.io.tmpdir={folder}"]
        with (
            (folder / "output").open("wb") as output,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=output, text=True, env=environment, cwd=folder
            ) as process,
        ):
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith(_LINE_MARK):
                        yield _result(json.loads(line[len(_LINE_MARK) :]))
            finally:
                process.kill()
        assert process.returncode == 0, (folder / "output").read_text()[-3000:]


def _result(line: dict[str, object]) -> Result:
    return Result(
        name=str(line["class"]).removeprefix(PACKAGE),
        test=str(line["test"]),
        status=str(line["status"]),
        seconds=float(str(line["seconds"])),
        error=str(line["error"]),
    )
