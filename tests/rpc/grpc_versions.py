"""`make test-grpc`: the tests of what is private in grpcio, with each minor version of the pinned range.

Each version is installed into build/grpc, beside the environment, and comes first on the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

#: Minor versions of grpcio that exist in the pinned range.
VERSIONS: Final = ("1.76", "1.78", "1.80", "1.81", "1.82", "1.83", "1.84", "1.85")
_PACKAGES: Final = ("grpcio", "grpcio-health-checking", "grpcio-reflection")  # of one version each
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_TESTS: Final = [f"tests/rpc/test_{name}.py" for name in ("accepting", "first_messages")]


def main() -> int:
    failed = []
    for minor in VERSIONS:
        target = _ROOT / "build" / "grpc" / minor
        if not target.exists():
            install = [
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(target),
                *(f"{package}=={minor}.*" for package in _PACKAGES),
            ]
            subprocess.run([sys.executable, "-m", *install], check=True)
        print(f"grpcio {minor}", flush=True)
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_TESTS]
        done = subprocess.run(tests, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(target)}, check=False)
        if done.returncode:
            failed.append(minor)
    print(f"failed: {', '.join(failed)}" if failed else "all versions pass")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
