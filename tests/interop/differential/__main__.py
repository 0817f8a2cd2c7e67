"""Run the differential test outside of pytest.

python -m tests.interop.differential --seeds 20
python -m tests.interop.differential --seed 7 --stores classic
python -m tests.interop.differential --replay FILE
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from .brokers import CLASSIC, REPLICATED, running_brokers
from .campaign import Campaign
from .generator import Generator
from .steps import from_text


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.differential")
    parser.add_argument("--seeds", type=int, default=20, help="how many sequences")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--length", type=int, default=60, help="steps of a sequence")
    parser.add_argument("--stores", default=f"{REPLICATED},{CLASSIC}")
    parser.add_argument("--replay", type=Path, help="a file with the steps of a printed sequence")
    parser.add_argument("--home", type=Path, help="an empty directory that is kept")
    parser.add_argument("--restarts", action="store_true", help="with restarts and exchanges of directories")
    parser.add_argument("--no-shrink", action="store_true", help="only report sequences that fail")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        home = given.home or Path(temporary)
        async with running_brokers(home, tuple(given.stores.split(","))) as brokers:
            campaign = Campaign(brokers, partial(print, flush=True), shrinks=not given.no_shrink)
            if given.replay:
                failed += bool(await campaign.run(0, from_text(given.replay.read_text())))
            else:
                for seed in range(given.seed, given.seed + given.seeds):
                    steps = Generator(seed, given.length, given.restarts).steps()
                    failed += bool(await campaign.run(seed, steps))
                    print(f"# seed {seed} done", flush=True)
            print(campaign.counts.table())
    return 1 if failed else 0


async def main_until_signal() -> int:
    """SIGTERM ends the brokers, too."""
    task = asyncio.ensure_future(main())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(asyncio.run(main_until_signal()))
