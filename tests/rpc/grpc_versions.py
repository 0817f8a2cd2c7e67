"""`make test-grpc`: the tests of what is private in grpcio, with each minor version of the pinned range.

Each version is installed into build/grpc, beside the environment, and comes first on the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

#: By minor version: whether calls can be asked for ahead, and ended without their request.
ABILITIES: Final = {
    "1.76": (False, True),
    "1.78": (False, True),
    "1.80": (False, True),
    "1.81": (False, True),
    "1.82": (False, True),
    "1.83": (False, True),
    "1.84": (True, True),
    "1.85": (True, True),
}
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_TESTS: Final = [f"tests/rpc/test_{name}.py" for name in ("grpc_internals", "accepting", "unsent_requests")]


def main() -> int:
    failed = []
    for minor in ABILITIES:
        target = _ROOT / "build" / "grpc" / minor
        if not target.exists():
            install = [
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(target),
                f"grpcio=={minor}.*",
            ]
            subprocess.run([sys.executable, "-m", *install], check=True)
        print(f"grpcio {minor}", flush=True)
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_TESTS]
        done = subprocess.run(tests, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(target)}, check=False)
        if done.returncode:
            failed.append(minor)
    print(f"failed: {', '.join(failed)}" if failed else "all versions do what is written of them")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
