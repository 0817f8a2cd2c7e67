"""Defects of changes of the members. Importing this puts them among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, add, lines, mutation, number
from tests.chaos.checker.mutations.raft import tell
from tests.chaos.checker.synthetic import Line, Trace, Value, digest_of

_NODES = ("n1", "n2", "n3")
_ALL = ",".join(_NODES)
_UIDS = "n1:0,n2:0,n3:0"


def _configuration(index: int, term: int, voters: str, outgoing: str = "", learners: str = "") -> Line:
    place: Line = {"e": "configuration", "lidx": index, "eterm": term, "uids": _UIDS}
    return place | {"voters": voters, "outgoing": outgoing, "learners": learners}


def start_with_three(trace: Trace) -> None:
    """Every process of a node says who the voters are."""
    for recover in lines(trace, Ev.STORE, e="recover"):
        tell(trace, recover, Ev.RAFT, **_configuration(-1, -1, _ALL))


def ranges(trace: Trace, term: int) -> list[int]:
    """The last indexes of what the leader of a term appends at once, in order; the first is its no-op."""
    leader = lines(trace, Ev.RAFT, e="leader", term=term)[0]["node"]
    return [number(line, "last") for line in lines(trace, Ev.STORE, e="append", node=leader, eterm=term)]


def enter(trace: Trace, configuration: Line) -> None:
    """An entry of all logs becomes a configuration."""
    index, term = number(configuration, "lidx"), configuration["eterm"]
    for node in _NODES:
        appended = next(
            line
            for line in lines(trace, Ev.STORE, e="append", node=node, eterm=term)
            if number(line, "last") >= index
        )
        tell(trace, appended, Ev.RAFT, **configuration)
        commit = next(
            line for line in lines(trace, Ev.RAFT, e="commit", node=node) if number(line, "lidx") >= index
        )
        tell(trace, commit, Ev.RAFT, e="configuration_committed", lidx=index, eterm=term, term=commit["term"])


def demote(
    trace: Trace, voters: str = "n1,n3", *, joint: bool = True, final: bool = True, since: int = 1
) -> tuple[int, int]:
    """In term 2, the other nodes become learners. The indexes of both entries; `since`: the first one is that
    of the leader's appends with this number."""
    start_with_three(trace)
    learners = ",".join(node for node in _NODES if node not in voters.split(","))
    first, last = ranges(trace, 2)[since : since + 2]
    enter(trace, _configuration(first, 2, voters, _ALL if joint else "", learners))
    if joint and final:
        enter(trace, _configuration(last, 2, voters, "", learners))
    return first, last


def demote_well(trace: Trace) -> None:
    demote(trace)


@mutation("", broker=False)
def a_voter_becomes_a_learner(trace: Trace) -> None:
    demote(trace)


@mutation("R3", broker=False)
def a_leader_is_elected_by_the_outgoing_voters_alone(trace: Trace) -> None:
    demote(trace, "n2,n3", final=False)


@mutation("R3", broker=False)
def a_leader_is_elected_by_a_learner(trace: Trace) -> None:
    """n2 does not vote in term 3, and n1 is no voter any more."""
    demote(trace, "n2,n3")


@mutation("R26", broker=False)
def two_configurations_have_majorities_without_a_common_node(trace: Trace) -> None:
    demote(trace, "n3", joint=False)


@mutation("R3 R27", broker=False)
def a_learner_leads(trace: Trace) -> None:
    demote(trace, "n1,n2")


def _replace_n1(trace: Trace) -> None:
    """From the first configuration of term 2 on, its member is another machine."""
    for line in lines(trace, Ev.RAFT, e="configuration"):
        if line["lidx"] != -1:
            line["uids"] = _UIDS.replace("n1:0", "n1:7")
    replaced = next(
        line for line in lines(trace, Ev.RAFT, e="configuration", node="n1") if line["lidx"] != -1
    )
    tell(trace, replaced, Ev.RAFT, e="term_vote", term=2, vote="n2")
    told = [line for e in ("term_vote", "vote", "leader") for line in lines(trace, Ev.RAFT, e=e)]
    for line in [*told, *lines(trace, Ev.STORE, e="recover")]:
        is_new = line["node"] == "n1" and number(line, "mono") >= number(replaced, "mono")
        line["uid"] = 7 if is_new else 0


@mutation("", broker=False)
def a_machine_is_replaced(trace: Trace) -> None:
    demote(trace)
    _replace_n1(trace)


@mutation("P2", broker=False)
def a_commit_counts_a_machine_that_was_replaced(trace: Trace) -> None:
    demote(trace)
    _replace_n1(trace)
    for line in lines(trace, Ev.RAFT, e="term_vote", node="n1", term=2):
        line["uid"] = 0


@mutation("", broker=False)
def a_new_machine_counts_before_it_knows_its_uid(trace: Trace) -> None:
    demote(trace)
    _replace_n1(trace)
    for line in lines(trace, Ev.RAFT, e="term_vote", node="n1", term=2):
        line["uid"] = -1


@mutation("R3 R28", broker=False)
def a_machine_that_was_replaced_votes(trace: Trace) -> None:
    demote(trace)
    _replace_n1(trace)
    lines(trace, Ev.RAFT, e="vote", node="n1", term=3)[0]["uid"] = 0


@mutation("R3 R27", broker=False)
def a_machine_that_was_replaced_leads(trace: Trace) -> None:
    demote(trace)
    for line in lines(trace, Ev.RAFT, e="configuration"):
        if line["lidx"] != -1:
            line["uids"] = _UIDS.replace("n3:0", "n3:7")
    for line in [*lines(trace, Ev.RAFT, e="leader"), *lines(trace, Ev.RAFT, e="vote", node="n3")]:
        line["uid"] = 0


@mutation("R1", broker=False)
def two_machines_with_one_name_lead(trace: Trace) -> None:
    leader = lines(trace, Ev.RAFT, e="leader", term=3)[0]
    about: dict[str, Value] = {name: leader[name] for name in ("e", "term", "ended")}
    tell(trace, leader, Ev.RAFT, **about, role_epoch=number(leader, "role_epoch") + 1, uid=9)


@mutation("R29", broker=False)
def a_node_has_another_configuration_at_the_same_entry(trace: Trace) -> None:
    first, _ = demote(trace)
    lines(trace, Ev.RAFT, e="configuration", node="n1", lidx=first)[0]["learners"] = "n2,n4"


@mutation("R29", broker=False)
def a_committed_configuration_is_undone(trace: Trace) -> None:
    _, last = demote(trace)
    commit = lines(trace, Ev.RAFT, e="configuration_committed", node="n1", lidx=last)[0]
    tell(trace, commit, Ev.RAFT, e="configuration_undone", lidx=last, eterm=2)


@mutation("R30", broker=False)
def a_leader_changes_the_members_before_it_has_committed_anything(trace: Trace) -> None:
    demote(trace, since=0)


@mutation("R30", broker=False)
def a_leader_ends_a_change_before_it_has_committed_its_first_half(trace: Trace) -> None:
    first, last = demote(trace)
    for line in lines(trace, Ev.RAFT, e="configuration", lidx=first):
        commit = next(
            one
            for one in lines(trace, Ev.RAFT, e="configuration_committed", node=line["node"])
            if one["lidx"] == first
        )
        commit["lidx"] = last
    for line in lines(trace, Ev.RAFT, e="configuration", lidx=last):
        appended = lines(trace, Ev.RAFT, e="configuration", lidx=first, node=line["node"])[0]
        file = trace.files[str(line["src"]), number(line, "inc")]
        file.remove(line)
        line["mono"], line["wall"] = appended["mono"], appended["wall"]
        file.insert(next(i for i, one in enumerate(file) if one is appended) + 1, line)
    trace.renumber()


def _late_on_n1(trace: Trace, index: int) -> tuple[list[Line], int]:
    """The lines with which n1 writes and syncs this index, in order, and when the leader commits it."""
    written = [
        *lines(trace, Ev.STORE, e="append", node="n1", last=index),
        *lines(trace, Ev.DISK, e="synced", node="n1", lidx=index),
        *lines(trace, Ev.STORE, e="flush", node="n1", lidx=index),
    ]
    assert len(written) == 3
    return written, number(lines(trace, Ev.RAFT, e="commit", node="n2", lidx=index)[0], "mono")


@mutation("P2", broker=False)
def a_commit_counts_a_node_that_is_no_voter_any_more(trace: Trace) -> None:
    """Two of the voters are needed, and one of them syncs the entry after the commit."""
    _, last = demote(trace)
    index = next(index for index in ranges(trace, 2) if index > last)
    (_, *late), commit = _late_on_n1(trace, index)
    for ns, line in enumerate(late, 1):
        line["mono"] = line["wall"] = commit + ns


@mutation("P2", broker=False)
def a_commit_in_a_joint_configuration_lacks_a_majority_of_one_half(trace: Trace) -> None:
    first, _ = demote(trace, final=False)
    index = next(index for index in ranges(trace, 2) if index > first)
    (_, *late), commit = _late_on_n1(trace, index)
    for ns, line in enumerate(late, 1):
        line["mono"] = line["wall"] = commit + ns


@mutation("P7", broker=False)
def a_commit_of_changed_members_that_a_minority_had_written(trace: Trace) -> None:
    lines(trace, Ev.META, e="run_begin")[0]["flush_mode"] = "ASYNC_FLUSH"
    _, last = demote(trace)
    index = next(index for index in ranges(trace, 2) if index > last)
    late, commit = _late_on_n1(trace, index)
    for ns, line in enumerate(late, 1):
        line["mono"] = line["wall"] = commit + ns


@mutation("R32", broker=False)
def a_node_restarts_without_the_configuration_of_its_log(trace: Trace) -> None:
    start_with_three(trace)
    recover = lines(trace, Ev.STORE, e="recover")[-1]
    first = lines(trace, Ev.RAFT, e="configuration", node=recover["node"])[0]
    index, term = number(recover, "ended") - 1, number(recover, "term")
    later = tell(trace, first, Ev.RAFT, **_configuration(index, term, _ALL))
    later["mono"] = later["wall"] = number(first, "mono") + 1


# -- forced recoveries ---------------------------------------------------------------------------------


def lose_majority(trace: Trace) -> Line:
    """After all else n2 and n3 are lost, and n1 is recovered and starts. What is written about it."""
    end = max(number(line, "mono") for line in trace.all_lines()) + 10
    last = max(number(line, "lidx") for line in lines(trace, Ev.RAFT, e="commit", node="n1"))
    started = lines(trace, Ev.META, e="started", node="n1")[0]
    watched = lines(trace, Ev.DISK, e="watched", node="n1")[0]
    before = trace.files["node:n1", 1]
    recover = next(line for line in before if line.get("e") == "recover")
    candidate = lines(trace, Ev.RAFT, e="candidate", term=2)[0]
    stamp = {"src": "node:n1", "inc": 2, "node": "n1", "term": 9}
    begin: Line = before[0] | {"inc": 2, "pid": 300}
    again: Line = recover | stamp | {"ended": last + 1, "committed": last}
    again.pop("vote", None)
    closed: Line = before[-1] | {"inc": 2}
    life = [begin, again, candidate | stamp, closed]
    for ns, line in enumerate(life):
        line["mono"] = line["wall"] = end + 3 + ns
    trace.files["node:n1", 2] = life
    at = {"mono": end + 2, "wall": end + 2}
    admin = trace.files[str(started["src"]), number(started, "inc")]
    about: Line = {"e": "recovered", "node": "n1", "committed": last, "ended": last, "text": "new"}
    envelope: Line = {name: started[name] for name in ("v", "run", "src", "inc", "seq", "host", "ev")}
    recovered: Line = envelope | about | at
    admin[-1:-1] = [recovered, started | at | {"pid": 300}]
    admin[-1]["mono"] = admin[-1]["wall"] = end + 9
    disk = trace.files["disk:n1", 0]
    disk.insert(-1, watched | at)
    disk[-1]["mono"] = disk[-1]["wall"] = end + 9
    add(trace, lines(trace, Ev.META, e="written", node="n1")[0], pid=300)
    return recovered


def sync(trace: Trace, node: str, index: int, at: int) -> None:
    disk = trace.files[f"disk:{node}", 0]
    synced = [line for line in disk if line.get("e") == "synced"][-1]
    disk.insert(-1, synced | {"lidx": index, "mono": at, "wall": at})
    disk[-1]["mono"] = disk[-1]["wall"] = max(at + 6, number(disk[-1], "mono"))
    disk.sort(key=lambda line: number(line, "mono"))
    trace.renumber()


def lengthen(trace: Trace, recovered: Line, nodes: tuple[str, ...], commits: tuple[str, ...] = ()) -> None:
    """Before, an entry followed on these nodes alone, of which n3 leads. `commits`: those that commit it."""
    index, end = number(recovered, "ended") + 1, number(recovered, "mono") - 8
    for node in nodes:
        own = max(
            inc
            for (src, inc), file in trace.files.items()
            if src == f"node:{node}" and number(file[0], "mono") < end
        )
        sync(trace, node, index, end + 1)
        file = trace.files[f"node:{node}", own]
        append = next(line for line in reversed(file) if line.get("e") == "append")
        flush = next(line for line in reversed(file) if line.get("e") == "flush")
        entry = {"lidx": index, "last": index, "chain": digest_of("lost", index)}
        told = [append | entry, flush | {"lidx": index}]
        if node in commits:
            commit = next(line for line in reversed(file) if line.get("e") == "commit")
            told.append(commit | {"lidx": index, "chain": entry["chain"]})
        if node in commits and node == "n3":
            told.append(next(line for line in reversed(file) if line.get("e") == "ack") | {"lidx": index})
        for ns, line in enumerate(told):
            line["mono"] = line["wall"] = end + (0 if not ns else 1 + ns) - (node == "n3" and not ns)
        file[-1:-1] = told
        file[-1]["mono"] = file[-1]["wall"] = end + 7
    trace.renumber()


@mutation("", broker=False)
def a_majority_is_lost_and_the_survivor_continues(trace: Trace) -> None:
    lose_majority(trace)


@mutation("R31", broker=False)
def a_recovery_drops_the_end_of_the_log(trace: Trace) -> None:
    lose_majority(trace)
    recover = lines(trace, Ev.STORE, e="recover", node="n1")[-1]
    recover["ended"] = number(recover, "ended") - 1


def promote(trace: Trace, *, kept: int = 0, begins: int = 0, commits: tuple[str, ...] = ()) -> None:
    """The same, but n1 is promoted, which cuts an entry from its log. `kept`, `begins`: how far the last
    entry that is kept, and the one with which n1 starts, are from the right ones. `commits`: nodes that have
    committed what is cut."""
    recovered = lose_majority(trace)
    lengthen(trace, recovered, ("n1", "n3"), commits)
    recovered["last"] = number(recovered, "committed") + kept
    recovered["ended"] = number(recovered, "ended") + 1
    recover = lines(trace, Ev.STORE, e="recover", node="n1")[-1]
    recover["ended"] = number(recovered, "last") + 1 + begins
    at = number(recovered, "mono") - 2
    for ns, index in enumerate((number(recovered, "last"), number(recover, "ended"))):
        sync(trace, "n1", index, at + ns)


@mutation("", broker=False)
def a_mirror_is_promoted(trace: Trace) -> None:
    promote(trace)


@mutation("R33", broker=False)
def a_promotion_claims_a_commit_that_the_mirror_never_reported(trace: Trace) -> None:
    promote(trace, kept=1)


@mutation("R33", broker=False)
def a_promoted_mirror_starts_with_more_than_the_promotion_kept(trace: Trace) -> None:
    promote(trace, begins=1)


@mutation("R33", broker=False)
def a_promoted_mirror_starts_with_less_than_the_promotion_kept(trace: Trace) -> None:
    promote(trace, begins=-1)


@mutation("R33", broker=False)
def a_promotion_cuts_what_a_mirror_that_was_stopped_had_reported(trace: Trace) -> None:
    promote(trace, commits=("n1", "n3"))


@mutation("L15", broker=False)
def an_acknowledged_message_is_lost_with_the_majority(trace: Trace) -> None:
    """Of the last messages, one is on n2 and n3 alone, and nobody has read it."""
    recovered = lose_majority(trace)
    lengthen(trace, recovered, ("n2", "n3"), commits=("n3",))
    index, end = number(recovered, "ended") + 1, number(recovered, "mono") - 8
    invoke, answer = list(acked(trace))[-1]
    client = trace.files[str(invoke["src"]), number(invoke, "inc")]
    number_ = 1 + max(number(line, "op") for line in lines(trace, Ev.OP))
    mid = 1 + max(number(line, "mid") for line in lines(trace, Ev.OP, type="invoke", f="append"))
    sent = {"op": number_, "mono": end - 4, "wall": end - 4}
    client[-1:-1] = [
        invoke | sent | {"mid": mid, "digest": digest_of(mid)},
        answer | sent | {"lidx": index, "mono": end + 5, "wall": end + 5},
    ]
    client[-1]["mono"] = client[-1]["wall"] = end + 7
    trace.renumber()
