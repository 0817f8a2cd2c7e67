"""Syncs that were left out, came late, covered less, or were another node's; the reports of nodes say that
all is well. Importing this puts them among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, lines, mutation, number, remove
from tests.chaos.checker.synthetic import Line, Trace


def synced(trace: Trace, index: int) -> list[Line]:
    """The lines by which nodes became durable up to an index."""
    return lines(trace, Ev.DISK, e="synced", lidx=index)


def last_acked(trace: Trace) -> tuple[Line, int]:
    """The last answer in the calm after the faults, and the index up to which its group was synced."""
    _, end = list(acked(trace))[-1]
    return end, max(number(line, "lidx") for line in lines(trace, Ev.DISK, e="synced"))


def delay(trace: Trace, line: Line, until: int) -> None:
    """The line and all later ones of its writer come no sooner than this."""
    file = trace.files[str(line["src"]), number(line, "inc")]
    for one in file[number(line, "seq") :]:
        one["mono"] = max(number(one, "mono"), until)


@mutation("P2 R18")
def syncs_that_were_left_out(trace: Trace) -> None:
    _, index = last_acked(trace)
    remove(trace, *synced(trace, index)[1:])


@mutation("P2 R18")
def syncs_that_returned_after_the_answer(trace: Trace) -> None:
    end, index = last_acked(trace)
    for line in synced(trace, index)[1:]:
        delay(trace, line, number(end, "mono") + 1)


@mutation("P2 R18")
def syncs_that_covered_all_but_the_last_entry(trace: Trace) -> None:
    _, index = last_acked(trace)
    for line in synced(trace, index)[:2]:
        line["lidx"] = index - 1


@mutation("P2 R18")
def all_syncs_are_those_of_one_node(trace: Trace) -> None:
    """Three times the same one."""
    _, index = last_acked(trace)
    first, *others = synced(trace, index)
    file = trace.files[str(first["src"]), number(first, "inc")]
    at = file.index(first)
    remove(trace, *others)
    file[at:at] = [dict(first), dict(first)]
    trace.renumber()


@mutation("P2 R18")
def what_was_durable_was_written_again_before_the_answer(trace: Trace) -> None:
    _, index = last_acked(trace)
    for line in synced(trace, index)[:2]:
        file = trace.files[str(line["src"]), number(line, "inc")]
        file.insert(file.index(line) + 1, line | {"lidx": index - 2})
    trace.renumber()


@mutation("P2 R18")
def nothing_was_ever_synced(trace: Trace) -> None:
    remove(trace, *lines(trace, Ev.DISK, e="synced"))


@mutation("P2 R18", broker=False)
def a_log_without_brokers_that_was_never_synced(trace: Trace) -> None:
    remove(trace, *lines(trace, Ev.DISK, e="synced"))


@mutation("R16")
def a_vote_that_was_not_durable(trace: Trace) -> None:
    remove(trace, lines(trace, Ev.DISK, e="vote_synced", node="n3")[1])


@mutation("R16")
def a_vote_that_became_durable_after_it_was_given(trace: Trace) -> None:
    vote = lines(trace, Ev.RAFT, e="vote", node="n3")[1]
    synced = lines(trace, Ev.DISK, e="vote_synced", node="n3")[1]
    # The next line of this writer comes later still.
    synced["mono"] = number(vote, "mono") + 1


@mutation("R16")
def another_vote_was_durable_than_the_one_that_was_given(trace: Trace) -> None:
    lines(trace, Ev.DISK, e="vote_synced", node="n3")[1]["vote"] = "n3"


@mutation("W11")
def a_life_of_a_node_was_not_watched(trace: Trace) -> None:
    remove(trace, lines(trace, Ev.DISK, e="watched")[-1])


@mutation("W7 W11 R16 R18")
def nobody_saw_the_syncs_of_one_node(trace: Trace) -> None:
    del trace.files["disk:n2", 0]


@mutation("W11")
def nobody_saw_any_sync_and_nobody_was_expected_to(trace: Trace) -> None:
    for node in ("n1", "n2", "n3"):
        del trace.files[f"disk:{node}", 0]
    remove(trace, *[line for line in lines(trace, Ev.META, e="expect") if "disk:" in str(line["member"])])


@mutation("P7")
def a_commit_that_a_minority_had_written(trace: Trace) -> None:
    """With ASYNC_FLUSH nothing of what syncs say counts."""
    lines(trace, Ev.META, e="run_begin")[0]["flush_mode"] = "ASYNC_FLUSH"
    remove(trace, *lines(trace, Ev.DISK, e="synced"))
    index = max(number(line, "lidx") for line in lines(trace, Ev.RAFT, e="commit"))
    first = lines(trace, Ev.RAFT, e="commit", lidx=index)[0]
    # The leader commits before the others write, in the order of the leader's own lines.
    for line in lines(trace, Ev.RAFT, e="commit", lidx=index):
        line["lidx"] = index
    writes = [line for line in lines(trace, Ev.STORE, e="append", last=index) if line["src"] != first["src"]]
    own = trace.files[str(first["src"]), number(first, "inc")]
    first["mono"] = number(writes[0], "mono") - 1
    for line in own[: own.index(first)]:
        line["mono"] = min(number(line, "mono"), number(first, "mono"))
