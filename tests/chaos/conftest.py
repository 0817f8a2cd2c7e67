"""The trace of every run of the harness that a test makes in its own process must keep the rules of Raft."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.run import Run, ScenarioResult
from tests.chaos.checker.raft_rules import broken_rules


@pytest.fixture(autouse=True, scope="session")
def judged_runs() -> Iterator[None]:
    original = Run.run

    async def run_and_judge(run: Run) -> ScenarioResult:
        result = await original(run)
        if run._trace_nodes:
            assert broken_rules([run._directory]) == []
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "run", run_and_judge)
        yield
