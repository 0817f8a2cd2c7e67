"""Traces of real runs: good ones are valid, and those that lack what a verdict needs are never called so, nor
invalid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.judge import CheckVerdict as Judged
from chaos.checker.judge import RunJudgment, judge
from chaos.checker.needs import NEEDS, Need
from chaos.checker.tables import make_tables
from chaos.plans.scenario import Scenario
from chaos.trace.schema import RAW_DIR
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.real_role_changes import ROLE_CHANGES
from tests.chaos.checker.real_traces import drop, drop_operations, load_trace
from tests.chaos.checker.synthetic import Line, Trace
from tests.chaos.valid_runs import valid_run
from tests.node.local import PATIENT

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("chaos-real-runs"), pytest.mark.timeout(900)]

KINDS = ("log", "broker")
#: What was done to a trace, what the run is then, and the need that is unmet, or the check that is violated.
Change = Callable[[Trace], None]
CHANGES: list[tuple[Change, Judged, Need | str, tuple[str, ...]]] = [
    (one, Judged.INVALID, check, kinds) for one, check, kinds in ROLE_CHANGES
]


def change(verdict: Judged, of: Need | str, *kinds: str) -> Callable[[Change], Change]:
    def register(one: Change) -> Change:
        CHANGES.append((one, verdict, of, kinds or KINDS))
        return one

    return register


def unknown(need: Need, *kinds: str) -> Callable[[Change], Change]:
    return change(Judged.UNKNOWN, need, *kinds)


def invalid(check: str, *kinds: str) -> Callable[[Change], Change]:
    return change(Judged.INVALID, check, *kinds)


def found(trace: Trace, **fields: object) -> list[Line]:
    return [line for line in trace.all_lines() if all(line.get(k) == v for k, v in fields.items())]


def drains(trace: Trace) -> list[Line]:
    """Their invokes, those of the longest log first."""
    asked = found(trace, f="drain", type="invoke")
    shown = [line["op"] for line in trace.all_lines() if line["ev"] == "dlv"]
    return sorted(asked, key=lambda line: -shown.count(line["op"]))


def position(line: Line) -> int:
    return int(line.get("qoff", line.get("lidx", -1)))


# -- final reads


@unknown(Need.FINAL_READS)
def nothing_was_read_in_the_end(trace: Trace) -> None:
    assert drop_operations(trace, {line["op"] for line in drains(trace)})


@unknown(Need.FINAL_READS)
def one_log_was_not_read_in_the_end(trace: Trace) -> None:
    assert drop_operations(trace, {drains(trace)[0]["op"]})


@unknown(Need.FINAL_READS)
def the_final_read_begins_late(trace: Trace) -> None:
    read = drains(trace)[0]
    read["from_off"] = 8
    assert drop(trace, lambda line: line["ev"] == "dlv" and line["op"] == read["op"] and position(line) < 8)


@unknown(Need.FINAL_READS)
def the_final_reads_were_before_the_healing(trace: Trace) -> None:
    (healed,) = found(trace, e="healed")
    last = max(int(line["mono"]) for line in found(trace, f="drain"))
    file = trace.files[str(healed["src"]), int(healed["inc"])]
    for line in file[file.index(healed) :]:
        line["mono"] = max(int(line["mono"]), last + 1)


@unknown(Need.FINAL_READS)
def nobody_says_which_logs_there_are(trace: Trace) -> None:
    """As in traces that are older than this."""
    assert drop(trace, lambda line: line.get("e") == "log")


@unknown(Need.FINAL_READS, "broker")
def a_queue_that_nobody_wrote_to_was_not_looked_at(trace: Trace) -> None:
    (line, *_) = found(trace, e="log")
    file = trace.files[str(line["src"]), int(line["inc"])]
    file.insert(file.index(line), line | {"topic": "another"})
    trace.renumber()


@invalid("L6b")
def the_head_of_a_log_is_gone_after_it_was_consumed(trace: Trace) -> None:
    read = drains(trace)[0]
    gone = drop(trace, lambda line: line["ev"] == "dlv" and line["op"] == read["op"] and position(line) < 8)
    (end,) = found(trace, ev="op", op=read["op"], type="ok")
    end["count"] = int(str(end["count"])) - gone
    assert gone


# -- answers to sends


def unplaced(trace: Trace, *names: str) -> None:
    """One answer to a batch, without these fields."""
    answer = found(trace, f="send_batch", type="ok")[0]
    for name in names:
        del answer[name]


@change(Judged.VALID, "", "broker")
def a_batch_was_sent_again_to_a_node_that_has_it(trace: Trace) -> None:
    """It says in which queue the batch is, and not who has stored it at which index."""
    unplaced(trace, "lidx", "term", "node", "ledger")


@unknown(Need.SHAPED, "broker")
def a_batch_is_nowhere(trace: Trace) -> None:
    unplaced(trace, "lidx", "term", "node", "ledger", "qoff")


@unknown(Need.SHAPED, "broker")
def a_batch_has_an_index_of_nobody(trace: Trace) -> None:
    unplaced(trace, "node")


@unknown(Need.SHAPED, "log")
def a_batch_has_no_index(trace: Trace) -> None:
    unplaced(trace, "lidx", "term")


# -- lives of nodes


def a_killed_life(trace: Trace) -> tuple[str, int]:
    return next(
        key
        for key, lines in trace.files.items()
        if key[0].startswith("node:") and lines[-1].get("e") != "trace_end"
    )


@unknown(Need.LIVES)
def the_file_of_a_life_is_missing(trace: Trace) -> None:
    del trace.files[a_killed_life(trace)]


@unknown(Need.LIVES)
def the_file_of_the_life_after_a_kill_is_missing(trace: Trace) -> None:
    src, inc = a_killed_life(trace)
    del trace.files[src, inc + 1]


@unknown(Need.LIVES)
def a_killed_life_breaks_off_early(trace: Trace) -> None:
    lines = trace.files[a_killed_life(trace)]
    del lines[len(lines) // 2 :]


@unknown(Need.LIVES)
def a_life_that_nobody_killed_breaks_off_at_its_end(trace: Trace) -> None:
    """Another life of the node was killed, which does not excuse this one."""
    src, inc = a_killed_life(trace)
    del trace.files[src, inc + 1][-20:]


@unknown(Need.LIVES)
def a_life_ends_without_a_farewell_and_the_kill_was_before_it(trace: Trace) -> None:
    src, inc = a_killed_life(trace)
    del trace.files[src, inc + 1][-1]
    trace.renumber()


@unknown(Need.LIVES)
def nobody_says_which_lives_there_were(trace: Trace) -> None:
    """As in traces that are older than this."""
    assert drop(trace, lambda line: line.get("e") in {"started", "written"})


# -- faults


@unknown(Need.FAULTS)
def a_fault_says_at_its_end_that_it_had_no_effect(trace: Trace) -> None:
    (end, *_) = found(trace, ev="fault", e="end")
    end["effective"] = False


@unknown(Need.FAULTS)
def a_fault_never_ends(trace: Trace) -> None:
    assert drop(trace, lambda line: line["ev"] == "fault" and line["e"] == "end")


# -- files of nodes


@unknown(Need.DUMPS)
def the_end_of_the_dump_of_a_node_is_missing(trace: Trace) -> None:
    entries = found(trace, ev="dump", node="n2")
    last = {id(line) for line in entries[-9:]}
    trace.files["dump:n2", 0] = [line for line in trace.files["dump:n2", 0] if id(line) not in last]
    for seq, line in enumerate(trace.files["dump:n2", 0]):
        line["seq"] = seq


@unknown(Need.DUMPS)
def the_files_of_a_node_were_not_read(trace: Trace) -> None:
    del trace.files["dump:n2", 0]
    assert drop(trace, lambda line: line.get("e") == "expect" and line["member"] == "dump:n2")


@unknown(Need.DUMPS, "broker")
def nobody_looked_for_consume_queues(trace: Trace) -> None:
    assert drop(trace, lambda line: line["ev"] == "cq" or line.get("ledger") == "consumequeue")


@invalid("S5", "broker")
def a_consume_queue_is_absent_on_one_node(trace: Trace) -> None:
    (place, *_) = found(trace, ev="cq", node="n2")
    assert drop(trace, lambda u: all(u.get(k) == place[k] for k in ("ev", "node", "topic", "q")))


@invalid("S5", "broker")
def a_consume_queue_is_absent_on_all_nodes(trace: Trace) -> None:
    (place, *_) = found(trace, ev="cq", node="n2")
    assert drop(trace, lambda u: all(u.get(k) == place[k] for k in ("ev", "topic", "q")))


@invalid("S5", "broker")
def all_consume_queues_are_absent(trace: Trace) -> None:
    assert drop(trace, lambda line: line["ev"] == "cq")


@invalid("S6", "broker")
def a_consume_queue_begins_late(trace: Trace) -> None:
    (place, *_) = found(trace, ev="cq", node="n2", qoff=0)
    assert drop(trace, lambda u: u is place)


@invalid("B6")
def the_files_of_all_nodes_begin_late(trace: Trace) -> None:
    assert drop(trace, lambda line: line["ev"] == "dump" and position(line | {"qoff": line["lidx"]}) < 3)


@invalid("B10", "broker")
def queues_of_all_nodes_go_on_behind_their_last_message(trace: Trace) -> None:
    """The unit points to an entry that is there and is another message."""
    end = max(int(line["lidx"]) for line in found(trace, ev="dump") if "qoff" in line)
    units = sorted(found(trace, ev="cq", node="n1"), key=lambda unit: int(unit["lidx"]))
    last_queue = units[-1]["topic"], units[-1]["q"]
    last = next(unit for unit in reversed(units) if (unit["topic"], unit["q"]) != last_queue)
    queue = {name: last[name] for name in ("topic", "q")}
    assert int(last["lidx"]) < end
    for key in [key for key in trace.files if key[0].startswith("dump:")]:
        file = trace.files[key]
        place = next(i for i, line in enumerate(file) if line["ev"] == "cq")
        file.insert(place, file[place] | queue | {"qoff": int(last["qoff"]) + 1, "lidx": end})
    trace.renumber()


@invalid("R25", "broker")
def a_follower_commits_and_stops_applying(trace: Trace) -> None:
    (settled,) = found(trace, e="settled")
    leader = max(found(trace, e="leader"), key=lambda line: int(line["term"]))["node"]
    node = next(name for name in ("n1", "n2", "n3") if name != leader)
    least = int(settled["off"]) - 20
    assert drop(
        trace, lambda line: line.get("e") == "apply" and line["node"] == node and int(line["last"]) > least
    )


@invalid("B3", "broker")
def a_look_up_names_another_offset(trace: Trace) -> None:
    asked = {line["op"] for line in found(trace, f="lookup", type="ok")}
    shown = next(line for line in found(trace, ev="dlv") if line["op"] in asked)
    shown["qoff"] = int(shown["qoff"]) + 1


@invalid("B2", "broker")
def the_least_offset_rises_and_nothing_was_purged(trace: Trace) -> None:
    found(trace, type="ok", f="min_off")[-1]["min_off"] = 1


# -- copies


@unknown(Need.ONCE)
def a_file_is_there_twice_and_not_byte_for_byte(trace: Trace) -> None:
    for key in [key for key in trace.files if key[0].startswith(("client:p", "node:"))]:
        trace.files[key] += [line | {"wall": int(line["wall"]) + 1} for line in trace.files[key]]


@unknown(Need.WRITERS)
def somebody_wrote_whom_nobody_expected(trace: Trace) -> None:
    for key in [key for key in trace.files if key[0] == "client:p0"]:
        trace.files["client:p0x", 0] = [line | {"src": "client:p0x"} for line in trace.files[key]]


# -- clocks


def late(trace: Trace, ns: int) -> None:
    """The clock of a client is so much behind the others."""
    for line in trace.files["client:p1", 0]:
        line["mono"] = int(line["mono"]) - ns


@unknown(Need.CLOCKS)
def the_clock_of_a_client_is_late(trace: Trace) -> None:
    late(trace, 20_000_000)


@unknown(Need.CLOCKS)
def the_clock_of_a_client_jumps_ahead_beyond_the_bound(trace: Trace) -> None:
    found(trace, e="run_begin")[0]["clock_bound_ns"] = 20_000_000
    lines = trace.files["client:p1", 0]
    for line in lines[len(lines) // 2 :]:
        line["mono"] = int(line["mono"]) + 50_000_000


@unknown(Need.CLOCKS)
def the_lines_of_a_node_are_scrambled(trace: Trace) -> None:
    _scramble(trace, "node:n1")


@unknown(Need.CLOCKS)
def the_lines_of_a_client_are_scrambled(trace: Trace) -> None:
    _scramble(trace, "client:p1")


def _scramble(trace: Trace, src: str) -> None:
    key = next(key for key in trace.files if key[0] == src)
    first, *between, last = trace.files[key]
    Random(3).shuffle(between)
    trace.files[key] = [first, *between, last]
    trace.renumber()


@change(Judged.VALID, "")
def the_clock_of_a_client_is_late_within_the_bound(trace: Trace) -> None:
    found(trace, e="run_begin")[0]["clock_bound_ns"] = 20_000_000
    late(trace, 20_000_000)


@change(Judged.VALID, "")
def the_clock_of_a_client_jumps_ahead_within_the_bound(trace: Trace) -> None:
    found(trace, e="run_begin")[0]["clock_bound_ns"] = 20_000_000
    for key in [key for key in trace.files if key[0].startswith("client:")][::2]:
        lines = trace.files[key]
        for line in lines[len(lines) // 2 :]:
            line["mono"] = int(line["mono"]) + 10_000_000


# -- the runs


def scenario(workload: str) -> Scenario:
    fault = {"kind": "kill", "target": "leader", "at": 1, "lasts": 1.5}
    load = {"rate": 30, "readers": 1}
    about = {"name": f"short-{workload}", "title": "A kill", "workload": workload, "seconds": 5}
    about |= {"settings": {"timing": PATIENT}}  # the kill alone costs a leadership
    return Scenario.model_validate({**about, "load": load, "fault": [fault]})


def names(one: Change, kind: str) -> str:
    return f"{kind}-{one.__name__}"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunJudgment]]:
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        run = asyncio.run(valid_run(scenario(kind), folder / f"runs-{kind}")).folder
        load_trace(run, kind).write(folder / kind)
        for one, *_, kinds in CHANGES:
            if kind in kinds:
                trace = load_trace(run, names(one, kind))
                one(trace)
                trace.write(folder / trace.run)
    engine = DuckEngine()
    engine.load(sorted(path.parent for path in folder.glob(f"*/{RAW_DIR}")))
    make_tables(engine)
    yield {result.run: result for result in judge(engine, CHECKS)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_run_is_valid(kind: str, judged: dict[str, RunJudgment]) -> None:
    assert judged[kind].verdict is Judged.VALID, judged[kind].reasons


@pytest.mark.parametrize(
    ("name", "verdict", "of"),
    [(names(one, kind), verdict, of) for one, verdict, of, kinds in CHANGES for kind in kinds],
)
def test_what_is_missing_is_neither_guilt_nor_innocence(
    name: str, verdict: Judged, of: Need | str, judged: dict[str, RunJudgment]
) -> None:
    result = judged[name]
    fired = {finding.check.id for finding in result.findings if finding.violations}
    assert result.verdict is verdict, (fired, result.reasons)
    assert not of or (NEEDS[of].by if isinstance(of, Need) else of) in fired, result.reasons
