"""Our brokers answer, and store, what RocketMQ 5.5 does; see the package's other modules."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.interop import genuine

from .accepted import NOT_ASKED, RULES
from .brokers import CLASSIC, REPLICATED, running_brokers
from .campaign import Campaign
from .generator import Generator
from .shrink import shrunk
from .steps import Step, from_text, to_text

_DEVIATIONS = Path(__file__).parents[3] / "docs/deviations.md"
_SEEDS = int(os.environ.get("DIFFERENTIAL_SEEDS", "6"))


@pytest.mark.xdist_group("interop")
@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_our_brokers_do_what_rocketmq_does(tmp_path: Path) -> None:
    genuine.require()
    async with running_brokers(tmp_path, (REPLICATED, CLASSIC)) as brokers:
        campaign = Campaign(brokers)
        seeds = range(1, 1 + _SEEDS)
        failed = [seed for seed in seeds if await campaign.run(seed, Generator(seed, 60).steps())]
        assert not failed, f"seeds {failed}; the shrunk sequences are printed above"


def test_each_accepted_difference_is_documented() -> None:
    """The section has one item for each rule, and none without a rule."""
    section = _DEVIATIONS.read_text().split(
        "## Differences from RocketMQ that the differential test accepts"
    )[1]
    items = set(re.findall(r"^- `([\w-]+)`:", section.split("\n## ")[0], re.MULTILINE))
    assert items == {*NOT_ASKED, *(rule.name for rule in RULES)}


def test_equal_seeds_make_equal_sequences_that_can_be_written_and_read() -> None:
    steps = Generator(3, 60).steps()
    assert steps == Generator(3, 60).steps() != Generator(4, 60).steps()
    assert from_text(to_text(steps)) == steps


async def test_a_failing_sequence_shrinks_to_the_steps_that_fail() -> None:
    steps = [Step(number, "setup_topic" if number < 3 else "send", {}) for number in range(40)]

    async def fails(candidate: object) -> bool:
        assert isinstance(candidate, list)
        return {1, 17, 30} <= {step.number for step in candidate}

    assert [step.number for step in await shrunk(steps, fails)] == [1, 17, 30]
