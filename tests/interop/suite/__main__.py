"""`python -m tests.interop.suite [CLASS...]`: run RocketMQ's integration tests and write the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from . import page, run
from .servers import STORES

_ERROR_LINES = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", nargs="*", help="names without the package; default: all")
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    parser.add_argument("--parallel", type=int, default=4, help="classes that run side by side")
    parser.add_argument("--keep", type=Path, help="keep the files of servers and tests in this new directory")
    options = parser.parse_args()
    reason = run.missing()
    if reason:
        print(f"ROCKETMQ'S INTEGRATION TESTS DID NOT RUN: {reason}", file=sys.stderr)
        return 2
    current_run = page.current_run()
    with tempfile.TemporaryDirectory(prefix="suite-") as folder:
        home = options.keep or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        names = options.classes or run.all_classes()
        results = run.run(home, names, options.store, options.parallel, _print)
    page.update(options.store, results, current_run)
    print(dict(Counter(result.status for result in results)))
    return int(any(result.status in {"failed", "late"} for result in results))


def _print(result: run.Result) -> None:
    print(f"{result.status:8} {result.seconds:7.1f} s  {result.name}.{result.test}", flush=True)
    if result.status not in {"passed", "ignored"}:
        lines = result.error.splitlines()[:_ERROR_LINES]
        print("".join(f"    {line}\n" for line in lines), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
