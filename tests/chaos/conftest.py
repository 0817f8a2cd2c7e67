"""Every run of the harness that a test makes in its own process has its trace walked by the specification."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.run import Result, Run
from chaos.spec.__main__ import describe
from chaos.spec.reading import read_trace
from chaos.spec.walk import Verdict, walk


@pytest.fixture(autouse=True, scope="session")
def walked_runs() -> Iterator[None]:
    original = Run.run

    async def run_and_walk(run: Run) -> Result:
        result = await original(run)
        if run._trace_nodes:
            outcome = walk(read_trace(run._directory))
            assert outcome.verdict is Verdict.ACCEPTED, describe(outcome)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "run", run_and_walk)
        yield
