"""`python -m benchmarks`: all figures of a local cluster, with the yardsticks of the same run."""

from __future__ import annotations

import asyncio
from benchmarks import yardsticks
from benchmarks.common import show

show("x", asyncio.run(yardsticks.run(4)))
