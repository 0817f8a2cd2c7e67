"""What breaks a rule of Raft for the checker is refused by the specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.spec.reading import read_trace
from chaos.spec.walk import Verdict, walk
from tests.chaos.checker.mutations.base import MUTATIONS, Mutation
from tests.chaos.checker.runs import short_trace

#: Of R14 to R16 the specification knows nothing: faults, files in the end, and the evidence of syncs.
RULES = {f"R{number}" for number in range(1, 14)} | {"P1"}
#: What its rules are not about, although checks with these numbers find it.
BEYOND = {
    "queues_are_built_up_to_an_earlier_entry": "it has no ConsumeQueues",
    "the_logs_of_master_and_slave_diverge": "files in the end, of a classic log",
    "a_leader_begins_its_term_with_a_message": "what an entry is, files say in the end",
}
#: Changed lines that no check minds, and that no node can have written so.
IMPOSSIBLE = {
    "a_wiped_node_had_voted_for_itself": "the vote leaves the node, and its term was never durable",
    "a_term_is_durable_after_the_node_has_gone_on_to_the_next": "the vote of that term is forgotten",
}


def by_name(mutation: Mutation) -> str:
    return mutation.name


@pytest.mark.parametrize(
    "mutation", [m for m in MUTATIONS if m.expected & RULES and m.name not in BEYOND], ids=by_name
)
def test_what_breaks_a_rule_of_raft_is_refused(tmp_path: Path, mutation: Mutation) -> None:
    trace = short_trace(mutation.name, broker=mutation.broker)
    mutation.change(trace)
    trace.write(tmp_path)
    assert walk(read_trace(tmp_path)).verdict is Verdict.REFUSED


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if not m.expected], ids=by_name)
def test_what_is_no_defect_is_accepted(tmp_path: Path, mutation: Mutation) -> None:
    trace = short_trace(mutation.name, broker=mutation.broker)
    mutation.change(trace)
    trace.write(tmp_path)
    outcome = walk(read_trace(tmp_path))
    wanted = Verdict.REFUSED if mutation.name in IMPOSSIBLE else Verdict.ACCEPTED
    assert outcome.verdict is wanted, (outcome.line, outcome.why)
