"""One defect at a time, put into a clean trace, and the checks that must fire: these, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chaos.trace.schema import Ev
from tests.chaos.checker.synthetic import Line, Trace, digest_of

Change = Callable[[Trace], None]


@dataclass(frozen=True)
class Mutation:
    name: str
    change: Change
    expected: frozenset[str]
    broker: bool


MUTATIONS: list[Mutation] = []


def mutation(expected: str, *, broker: bool = True) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        MUTATIONS.append(Mutation(change.__name__, change, frozenset(expected.split()), broker))
        return change

    return register


# -- finding and changing lines -----------------------------------------------------------------------


def lines(trace: Trace, ev: Ev, **fields: object) -> list[Line]:
    """Lines that have these fields, by their clock. The envelope counts as well."""
    found = [
        line
        for line in trace.all_lines()
        if line["ev"] == ev and all(line.get(name) == value for name, value in fields.items())
    ]
    return sorted(found, key=lambda line: int(line["mono"]))


def number(line: Line, name: str) -> int:
    value = line[name]
    assert isinstance(value, int)
    return value


def remove(trace: Trace, *gone: Line) -> None:
    for key, kept in trace.files.items():
        trace.files[key] = [line for line in kept if not any(line is one for one in gone)]
    trace.renumber()


def add(trace: Trace, after: Line, **fields: object) -> Line:
    """A copy of a line, behind it in the same file and at the same time."""
    copy = after | fields  # type: ignore[operator]
    file = trace.files[str(after["src"]), number(after, "inc")]
    file.insert(next(i for i, line in enumerate(file) if line is after) + 1, copy)
    trace.renumber()
    return copy


def acked(trace: Trace) -> Iterator[tuple[Line, Line]]:
    """(invoke, answer) of acknowledged sends, in the order of the answers."""
    invokes = {line["op"]: line for line in lines(trace, Ev.OP, type="invoke") if "mid" in line}
    for line in lines(trace, Ev.OP, type="ok"):
        if line["op"] in invokes:
            yield invokes[line["op"]], line


def middle(trace: Trace) -> tuple[Line, Line]:
    found = [pair for pair in acked(trace) if pair[1]["term"] == 2]
    return found[len(found) // 2]


def everywhere(trace: Trace, mid: object) -> list[Line]:
    """All lines of a message except those of its sender."""
    return [
        line for line in trace.all_lines() if line.get("mid") == mid and line["ev"] in {"dlv", "dump", "done"}
    ]


# -- the trace itself ---------------------------------------------------------------------------------


@mutation("W1")
def a_line_is_missing(trace: Trace) -> None:
    file = trace.files["nemesis", 0]
    file[-1]["seq"] = number(file[-1], "seq") + 1


@mutation("W2")
def an_operation_completes_twice(trace: Trace) -> None:
    end = lines(trace, Ev.OP, type="ok", f="commit_off")[3]
    add(trace, end)


@mutation("W3")
def a_process_goes_on_after_an_unknown_outcome(trace: Trace) -> None:
    """Its last operation got no answer, its next one has the same name."""
    info = lines(trace, Ev.OP, type="info")[0]
    for line in lines(trace, Ev.OP, src=info["src"]):
        line["proc"] = info["proc"]


@mutation("W4 L2 C4")
def an_id_is_used_twice(trace: Trace) -> None:
    """The second message gets the first one's id and content, wherever it stands."""
    (first, _), (second, _) = [pair for pair in acked(trace) if pair[0]["q"] == 0 and pair[1]["term"] == 2][
        :2
    ]
    for line in [*everywhere(trace, second["mid"]), second]:
        line["mid"] = first["mid"]
        if "digest" in line:
            line["digest"] = first["digest"]


@mutation("W5")
def a_clock_goes_back(trace: Trace) -> None:
    trace.files["client:r0", 0][0]["mono"] = number(trace.files["client:r0", 0][1], "mono") + 1


@mutation("W5")
def clocks_of_two_boots(trace: Trace) -> None:
    lines(trace, Ev.META, e="writer_begin")[0]["boot_id"] = "another"


@mutation("W6 V2")
def an_unknown_kind_of_line(trace: Trace) -> None:
    lines(trace, Ev.FAULT, e="end")[0]["ev"] = "gossip"


@mutation("W6")
def another_version_of_the_schema(trace: Trace) -> None:
    lines(trace, Ev.META, e="healed")[0]["v"] = 2


@mutation("W7")
def a_writer_is_missing(trace: Trace) -> None:
    add(trace, lines(trace, Ev.META, e="expect")[0], member="client:p9")


@mutation("W7")
def a_writer_stops(trace: Trace) -> None:
    remove(trace, trace.files["client:r0", 0][-1])


@mutation("W8")
def the_last_reads_stop_early(trace: Trace) -> None:
    last = lines(trace, Ev.META, e="drain_target", q=0)[0]
    last["off"] = number(last, "off") + 1


@mutation("W8")
def nothing_was_healed(trace: Trace) -> None:
    remove(trace, lines(trace, Ev.META, e="healed")[0])


@mutation("V2")
def a_fault_had_no_effect(trace: Trace) -> None:
    lines(trace, Ev.FAULT, e="begin")[0]["effective"] = False


# -- the log ------------------------------------------------------------------------------------------


@mutation("L1 L4 C1 C2")
def a_reader_sees_another_message(trace: Trace) -> None:
    """One delivery shows an id that was never sent, at the position of another."""
    given = lines(trace, Ev.DLV, group="G")[5]
    for line in [*lines(trace, Ev.DONE, mid=given["mid"]), given]:
        line["mid"] = 99_999_999


@mutation("L4 L1 C2", broker=True)
def a_reader_sees_another_content(trace: Trace) -> None:
    lines(trace, Ev.DLV, group="G")[5]["digest"] = digest_of("flipped")


@mutation("L2 C10 L14", broker=False)
def a_message_is_stored_twice(trace: Trace) -> None:
    """Its second copy was read behind everything else, and nobody knew it to be committed."""
    invoke, _ = next(acked(trace))
    last = [
        line
        for line in lines(trace, Ev.DLV)
        if line["lidx"] == max(number(one, "lidx") for one in lines(trace, Ev.DLV))
    ][-1]
    add(
        trace,
        last,
        mid=invoke["mid"],
        digest=invoke["digest"],
        lidx=number(last, "lidx") + 1,
        i=number(last, "i") + 1,
    )


@mutation("L5 P5", broker=False)
def a_failed_send_is_there(trace: Trace) -> None:
    """An append whose answer was lost is said to have failed."""
    for line in lines(trace, Ev.OP, type="info"):
        if everywhere(trace, line_of_invoke(trace, line)["mid"]):
            line["type"] = "fail"
            return


def line_of_invoke(trace: Trace, end: Line) -> Line:
    return lines(trace, Ev.OP, op=end["op"], type="invoke")[0]


@mutation("L6a L6b L10 L14", broker=False)
def an_acknowledged_message_is_read_by_nobody(trace: Trace) -> None:
    invoke, _ = middle(trace)
    remove(trace, *[line for line in everywhere(trace, invoke["mid"]) if line["ev"] == "dlv"])


@mutation("L6c", broker=False)
def an_acknowledged_message_is_gone_from_one_node(trace: Trace) -> None:
    invoke, _ = middle(trace)
    entry = next(line for line in lines(trace, Ev.DUMP, node="n2") if line.get("mid") == invoke["mid"])
    for name in ("mid", "digest"):
        del entry[name]
    entry["internal"] = True


@mutation("W5 L7 L9 P2 P8", broker=False)
def positions_against_real_time(trace: Trace) -> None:
    """Two messages that one producer sent one after the other change places, for everybody."""
    swap(trace, *[pair for pair in acked(trace) if pair[0]["src"] == "client:p1"][2:4])


@mutation("L7 L14", broker=False)
def a_late_read_claims_to_know_the_end(trace: Trace) -> None:
    end = next(line for line in reversed(lines(trace, Ev.OP, type="ok", f="get")) if line["end_claim"])
    end["max_off"] = number(end, "max_off") - 3
    found = [
        line for line in lines(trace, Ev.DLV, op=end["op"]) if number(line, "lidx") >= number(end, "max_off")
    ]
    remove(trace, *found)


def swap(trace: Trace, one: tuple[Line, Line], other: tuple[Line, Line]) -> None:
    (a, a_end), (b, b_end) = one, other
    for line in list(trace.all_lines()):
        if line["ev"] in {"dlv", "dump"} and line.get("mid") in {a["mid"], b["mid"]}:
            new = b if line["mid"] == a["mid"] else a
            line["mid"], line["digest"] = new["mid"], new["digest"]
    a_end["lidx"], b_end["lidx"] = b_end["lidx"], a_end["lidx"]
    # What the servers say of it is of no concern here.
    places = {a_end["lidx"], b_end["lidx"]}
    remove(trace, *[line for line in lines(trace, Ev.RAFT, e="ack") if line["lidx"] in places])


@mutation("W5 L8 L10 C10", broker=False)
def a_late_read_shows_the_future(trace: Trace) -> None:
    """It shows what was appended only later."""
    end = next(line for line in lines(trace, Ev.OP, type="invoke", f="get") if line["stale"])
    shown = lines(trace, Ev.DLV, op=end["op"])[-1]
    future = next(line for line in lines(trace, Ev.DLV) if number(line, "lidx") > number(shown, "lidx") + 12)
    for name in ("mid", "digest", "lidx"):
        shown[name] = future[name]


@mutation("L10")
def a_read_gives_messages_in_another_order(trace: Trace) -> None:
    drain = lines(trace, Ev.OP, type="invoke", f="drain")[0]
    found = lines(trace, Ev.DLV, op=drain["op"])
    found[2]["i"], found[3]["i"] = found[3]["i"], found[2]["i"]


@mutation("C1 C5 L11 L14")
def a_consumer_skips_a_read(trace: Trace) -> None:
    """What one pull brought never reached the consumer, which goes on behind it."""
    pulls = lines(trace, Ev.OP, type="ok", f="pull", src="client:c1")
    gone = next(pull for pull in pulls[3:] if lines(trace, Ev.DLV, op=pull["op"]))
    remove(trace, *lines(trace, Ev.DLV, op=gone["op"]), *lines(trace, Ev.DONE, op=gone["op"]))


# -- acknowledgements ---------------------------------------------------------------------------------


@mutation("P1")
def an_acknowledgement_before_its_commit(trace: Trace) -> None:
    ack = lines(trace, Ev.RAFT, e="ack")[20]
    before = [
        line
        for line in lines(trace, Ev.RAFT, e="commit", node=ack["node"], lidx=ack["lidx"])
        if number(line, "seq") < number(ack, "seq")
    ]
    commit = (
        before[-1]
        if before
        else [
            line for line in lines(trace, Ev.RAFT, e="commit", node=ack["node"]) if line["mono"] < ack["mono"]
        ][-1]
    )
    file = trace.files[str(ack["src"]), number(ack, "inc")]
    file.remove(ack)
    file.insert(file.index(commit), ack)
    ack["mono"] = commit["mono"]
    trace.renumber()


@mutation("P3 S2 S10")
def an_old_term_acknowledges_again(trace: Trace) -> None:
    """All later answers come from one term, one of them from the term before."""
    late = [end for _, end in acked(trace) if end["term"] == 3]
    for _, end in acked(trace):
        if end["term"] != 1:
            end["term"], end["node"] = 1, "n1"
    late[-1]["term"] = 0


@mutation("P4")
def an_answer_names_another_index(trace: Trace) -> None:
    _, end = list(acked(trace))[-1]
    end["lidx"] = number(end, "lidx") - 1


# -- Raft ---------------------------------------------------------------------------------------------


@mutation("R1 R3 R16 R20 R19 R22")
def two_leaders_of_a_term(trace: Trace) -> None:
    leader = lines(trace, Ev.RAFT, e="leader", term=2)[0]
    other = next(
        line for line in lines(trace, Ev.RAFT, e="follower", term=2) if line["node"] != leader["node"]
    )
    add(trace, other, e="leader", ended=leader["ended"])
    back = next(
        line
        for line in trace.files[str(other["src"]), number(other, "inc")]
        if line.get("e") == "leader" and line["term"] == 2
    )
    add(trace, back, e="follower")


@mutation("R2 R16 R22")
def a_node_votes_twice(trace: Trace) -> None:
    vote = next(line for line in lines(trace, Ev.RAFT, e="vote", term=2) if line["node"] != line["candidate"])
    add(trace, vote, candidate=vote["node"])


@mutation("R3")
def a_leader_without_a_majority(trace: Trace) -> None:
    votes = [line for line in lines(trace, Ev.RAFT, e="vote", term=2) if line["node"] != line["candidate"]]
    remove(trace, *votes)


@mutation("R4 R7")
def a_term_falls(trace: Trace) -> None:
    lines(trace, Ev.RAFT, e="commit", term=2, node="n3")[-1]["term"] = 1


@mutation("R5 R21")
def a_leader_truncates(trace: Trace) -> None:
    flush = lines(trace, Ev.STORE, e="flush", src="node:n1")[4]
    cut = number(flush, "lidx") + 1
    add(trace, flush, e="truncate", lidx=cut)


@mutation("R6")
def histories_differ_below_the_commit(trace: Trace) -> None:
    lines(trace, Ev.STORE, e="append", node="n3")[6]["chain"] = digest_of("other")


@mutation("R8")
def nodes_commit_different_entries(trace: Trace) -> None:
    lines(trace, Ev.RAFT, e="commit", node="n3")[6]["chain"] = digest_of("other")


@mutation("R7 R11 R19")
def a_leader_lacks_committed_entries(trace: Trace) -> None:
    leader = lines(trace, Ev.RAFT, e="leader", term=2)[0]
    leader["ended"] = number(leader, "ended") - 3
    for vote in lines(trace, Ev.RAFT, e="vote", term=2):
        vote["cand_last_index"] = leader["ended"]


@mutation("R9")
def a_commit_falls(trace: Trace) -> None:
    commit = lines(trace, Ev.RAFT, e="commit", node="n3")[6]
    entry = _entry(trace, number(commit, "lidx") - 2)
    add(trace, commit, lidx=entry["lidx"], chain=entry["chain"], eterm=entry["eterm"])


def _entry(trace: Trace, index: int) -> Line:
    return next(line for line in lines(trace, Ev.DUMP) if line["lidx"] == index)


@mutation("R5 R9 R21")
def a_follower_truncates_what_is_committed(trace: Trace) -> None:
    commit = lines(trace, Ev.RAFT, e="commit", node="n3")[6]
    truncated = add(trace, commit, ev="store", e="truncate")
    for name in ("term", "eterm", "chain"):
        del truncated[name]
    put_back = next(
        line for line in lines(trace, Ev.STORE, e="append", node="n3") if line["last"] == commit["lidx"]
    )
    add(trace, truncated, **{k: v for k, v in put_back.items() if k not in {"seq", "mono", "wall"}})


@mutation("R10")
def a_leader_counts_an_entry_of_an_earlier_term(trace: Trace) -> None:
    """Its first commit is the entry before its no-op."""
    leader = lines(trace, Ev.RAFT, e="leader", term=2)[0]
    commit = lines(trace, Ev.RAFT, e="commit", node=leader["node"], term=2)[0]
    index = number(commit, "lidx") - 1
    add(trace, leader, e="commit", lidx=index, eterm=1, chain=_entry(trace, index)["chain"], ledger="g")


@mutation("R12 R18 R21")
def what_was_durable_is_gone_after_a_restart(trace: Trace) -> None:
    recover = next(line for line in lines(trace, Ev.STORE, e="recover") if line["inc"] == 1)
    recover["ended"] = number(recover, "ended") - 1


@mutation("R13")
def an_entry_is_applied_twice(trace: Trace) -> None:
    add(trace, lines(trace, Ev.RAFT, e="apply", node="n3")[5])


@mutation("R13")
def queues_are_built_up_to_an_earlier_entry(trace: Trace) -> None:
    line = lines(trace, Ev.STORE, e="reput", node="n3")[5]
    add(trace, line, lidx=number(line, "lidx") - 2)


@mutation("R15")
def a_node_stays_behind(trace: Trace) -> None:
    """The last entry of one node's files, an internal one or not, is not there."""
    last = max(lines(trace, Ev.DUMP, node="n2"), key=lambda line: number(line, "lidx"))
    units = lines(trace, Ev.CQ, node="n2", lidx=last["lidx"])
    remove(trace, last, *units)


# -- role changes -------------------------------------------------------------------------------------


@mutation("S1")
def a_master_before_its_barrier_is_committed(trace: Trace) -> None:
    ready = lines(trace, Ev.ROLE, e="master_ready", term=2)[0]
    ready["committed"] = number(ready, "barrier") - 1


@mutation("S1")
def a_master_that_only_says_that_it_is_ready(trace: Trace) -> None:
    """Its own events show that dispatch was not so far."""
    ready = lines(trace, Ev.ROLE, e="master_ready", term=2)[0]
    reput = [
        line for line in lines(trace, Ev.STORE, e="reput", node=ready["node"]) if line["mono"] < ready["mono"]
    ][-1]
    remove(trace, reput)


@mutation("S2")
def a_master_serves_before_it_is_ready(trace: Trace) -> None:
    accept = lines(trace, Ev.RAFT, e="accept", term=2)[0]
    file = trace.files[str(accept["src"]), number(accept, "inc")]
    ready = next(line for line in file if line.get("e") == "master_ready" and line["term"] == 2)
    file.remove(accept)
    file.insert(file.index(ready), accept)
    accept["mono"] = ready["mono"]
    trace.renumber()


@mutation("S3")
def an_acknowledgement_after_the_demotion(trace: Trace) -> None:
    demoted = lines(trace, Ev.ROLE, e="demoted")[0]
    ack = [
        line for line in lines(trace, Ev.RAFT, e="ack", src=demoted["src"]) if line["mono"] < demoted["mono"]
    ][-1]
    late = add(trace, demoted)
    late.clear()
    late.update(ack | {"mono": demoted["mono"]})
    trace.renumber()


@mutation("S5")
def a_message_is_in_no_queue_of_a_node(trace: Trace) -> None:
    unit = max(lines(trace, Ev.CQ, node="n2", q=0), key=lambda line: number(line, "qoff"))
    remove(trace, unit)


@mutation("S6 B1 S5")
def a_queue_offset_is_used_twice(trace: Trace) -> None:
    unit = sorted(lines(trace, Ev.CQ, node="n2", q=0), key=lambda line: number(line, "qoff"))[4]
    unit["qoff"] = number(unit, "qoff") - 1


@mutation("B1")
def a_queue_unit_has_another_size(trace: Trace) -> None:
    lines(trace, Ev.CQ, node="n2", q=0)[4]["size"] = 101


# -- consumers ----------------------------------------------------------------------------------------


@mutation("C1")
def a_group_never_finishes_a_message(trace: Trace) -> None:
    """The group's last offset covers it no more, so that only its absence tells."""
    last = [line for line in lines(trace, Ev.DONE) if line["q"] == 0][-1]
    remove(
        trace,
        last,
        *[
            line
            for line in lines(trace, Ev.OP, f="commit_off")
            if number(line, "mono") > number(last, "mono") and _queue_of(trace, line) == 0
        ],
    )


def _queue_of(trace: Trace, line: Line) -> object:
    return line.get("q", lines(trace, Ev.OP, op=line["op"], type="invoke")[0].get("q"))


@mutation("C5")
def an_offset_beyond_what_was_processed(trace: Trace) -> None:
    commit = lines(trace, Ev.OP, f="commit_off", type="invoke")[2]
    done = [
        line
        for line in lines(trace, Ev.DONE, src=commit["src"], q=commit["q"])
        if line["mono"] < commit["mono"]
    ][-1]
    file = trace.files[str(commit["src"]), 0]
    end = next(line for line in file if line.get("op") == commit["op"] and line.get("type") == "ok")
    file.remove(done)
    file.insert(file.index(end) + 1, done)
    done["mono"] = end["mono"]
    trace.renumber()


@mutation("C9")
def too_many_attempts(trace: Trace) -> None:
    found = lines(trace, Ev.DLV, group="G")[7]
    add(trace, found, attempt=17)


@mutation("C4 L10")
def a_message_is_given_twice(trace: Trace) -> None:
    found = lines(trace, Ev.DLV, group="G")[7]
    add(trace, found)


@mutation("C10")
def an_uncommitted_entry_is_delivered(trace: Trace) -> None:
    """Nobody knew it to be committed before it was delivered; nodes and servers say so only afterwards."""
    first = next(line for line in lines(trace, Ev.DLV, group="G") if number(line, "lidx") > 12)
    for line in trace.all_lines():
        if line["ev"] == "dlv" and line["op"] == first["op"]:
            line["lidx"] = number(line, "lidx")
    first["lidx"] = number(first, "lidx") + 1_000


@mutation("A6")
def a_node_panicked(trace: Trace) -> None:
    healed = lines(trace, Ev.META, e="healed")[0]
    add(trace, healed, e="log_error", node="n1", text="AssertionError")


@mutation("A12")
def a_client_never_ended_its_close(trace: Trace) -> None:
    healed = lines(trace, Ev.META, e="healed")[0]
    add(trace, healed, e="unclosed", node="orderly-0.1", size=90_000_000_000)


# -- defects that need lines which a clean trace lacks --------------------------------------------------


def ask(trace: Trace, after: Line, op: int, name: str, *, answer: dict[str, object]) -> None:
    """One more operation of the writer of `after`, right after it."""
    shared = {"op": op, "f": name, "type": "invoke", "mono": number(after, "mono") + 100}
    invoke = add(trace, after, **shared)
    for field in ("off", "node", "term"):
        invoke.pop(field, None)
    invoke |= {"topic": "t", "q": 0, "group": "G"}
    end = add(trace, invoke, type="ok", mono=number(after, "mono") + 200)
    for field in ("topic", "q", "group"):
        del end[field]
    end.update(answer)  # type: ignore[arg-type]


@mutation("S9")
def a_stored_offset_falls(trace: Trace) -> None:
    last = [line for line in lines(trace, Ev.OP, type="ok", f="commit_off") if _queue_of(trace, line) == 0][
        -1
    ]
    ask(trace, last, 9_000_001, "fetch_off", answer={"off": number(last, "off") - 1})


@mutation("B2")
def the_least_offset_falls(trace: Trace) -> None:
    first, *_, last = lines(trace, Ev.OP, type="ok", f="commit_off", src="client:c0")
    ask(trace, first, 9_000_001, "min_off", answer={"min_off": 1})
    ask(trace, last, 9_000_002, "min_off", answer={"min_off": 0})


@mutation("S1 S4 S4W R17 W13")
def two_masters_of_a_term(trace: Trace) -> None:
    ready = lines(trace, Ev.ROLE, e="master_ready", term=2)[0]
    other = lines(trace, Ev.RAFT, e="follower", term=2, node="n3")[0]
    second = add(trace, other)
    second.update({k: v for k, v in ready.items() if k not in {"src", "inc", "seq", "mono", "node"}})


@mutation("B6")
def files_begin_late_without_a_purge(trace: Trace) -> None:
    remove(trace, *lines(trace, Ev.DUMP, node="n2", lidx=0))


@mutation("L6d R15 B10")
def a_majority_lacks_the_last_entry(trace: Trace) -> None:
    last = max(number(line, "lidx") for line in lines(trace, Ev.DUMP))
    for node in ("n2", "n3"):
        remove(trace, *lines(trace, Ev.DUMP, node=node, lidx=last))


@mutation("C8")
def a_filter_lets_everything_through(trace: Trace) -> None:
    for line in lines(trace, Ev.MEMBER, e="join"):
        line["filter"] = "a||b"


@mutation("L3 S6")
def an_offset_is_left_out(trace: Trace) -> None:
    """All that comes after the sixth message of a queue stands one further than it should."""
    queue_of = {line["op"]: line["q"] for line in lines(trace, Ev.OP, type="invoke") if "q" in line}
    for line in trace.all_lines():
        if line.get("q", queue_of.get(line.get("op", -1))) == 0:
            for name in ("qoff", "max_off", "next_off", "off", "from_off"):
                if name in line and number(line, name) > (
                    5 if name in {"qoff"} or line["ev"] == "meta" else 6
                ):
                    line[name] = number(line, name) + 1


@mutation("C1")
def an_orderly_group_that_left_had_skipped_a_message(trace: Trace) -> None:
    """It was given it, did not process it, and went on; nothing was promised of what came after it left."""
    remove(trace, *lines(trace, Ev.OP, f="commit_off"))
    remove(trace, *[line for line in lines(trace, Ev.OP) if "off" in line])
    remove(trace, lines(trace, Ev.DONE, q=0)[2])
    last = lines(trace, Ev.DONE)[-1]
    for consumer in ("c0", "c1"):
        end = trace.files[f"client:{consumer}", 0][-1]
        add(trace, end)
        end.update({"ev": "member", "e": "leave", "group": "G", "consumer": consumer})
    remove(trace, last)


# -- transactions, delays, and masters that overlap -----------------------------------------------------


def as_transaction(trace: Trace, invoke: Line, how: str) -> None:
    """The send of a message becomes the end of a transaction that began before: its commit or rollback."""
    for line in lines(trace, Ev.OP, op=invoke["op"]):
        line["f"] = how
    half = invoke | {"f": "txn_begin", "op": number(invoke, "op") + 9_400_000, "proc": "half"}
    answer = {name: half[name] for name in half.keys() - {"mid", "digest", "key", "tag", "ledger"}}
    file = trace.files[str(invoke["src"]), number(invoke, "inc")]
    at = next(i for i, line in enumerate(file) if line is invoke)
    file[at:at] = [half, answer | {"type": "ok"}]
    trace.renumber()


@mutation("B4 L4 C2")
def what_was_rolled_back_is_delivered(trace: Trace) -> None:
    """L4 and C2 as well: of what is rolled back nothing was ever sent to a queue."""
    as_transaction(trace, middle(trace)[0], "txn_rollback")


@mutation("B4 L6b L6a L10 L11 C1 C5 L14")
def what_was_committed_is_not_delivered(trace: Trace) -> None:
    invoke, _ = middle(trace)
    as_transaction(trace, invoke, "txn_commit")
    remove(trace, *lines(trace, Ev.DLV, mid=invoke["mid"]), *lines(trace, Ev.DONE, mid=invoke["mid"]))


@mutation("B4 L7")
def a_half_message_is_delivered_before_its_commit(trace: Trace) -> None:
    """Its commit is asked for only after somebody has it."""
    invoke, end = middle(trace)
    as_transaction(trace, invoke, "txn_commit")
    late = number(lines(trace, Ev.DLV, mid=invoke["mid"])[0], "mono") + 1_000
    for line in (invoke, end):
        line |= {"mono": late, "wall": late, "proc": "commits"}
    trace.files[str(invoke["src"]), number(invoke, "inc")].sort(key=lambda line: number(line, "mono"))
    trace.renumber()


@mutation("B5")
def a_delayed_message_comes_early(trace: Trace) -> None:
    middle(trace)[0]["delay_ms"] = 3_600_000


@mutation("S4W")
def a_master_goes_on_after_the_next_is_ready(trace: Trace) -> None:
    """Nothing was served meanwhile, and what was broken were others."""
    an_isolated_master_goes_on_after_the_next_is_ready(trace)
    for fault in lines(trace, Ev.FAULT, f="isolate"):
        fault["targets"] = "n9"


@mutation("")
def an_isolated_master_goes_on_after_the_next_is_ready(trace: Trace) -> None:
    """It is told only after its successor was ready; nothing was served meanwhile."""
    demoted = lines(trace, Ev.ROLE, e="demoted")[0]
    ready = next(
        number(line, "mono")
        for line in lines(trace, Ev.ROLE, e="master_ready")
        if number(line, "mono") > number(demoted, "mono")
    )
    file = trace.files[str(demoted["src"]), number(demoted, "inc")]
    since = file.index(demoted)
    # What the node writes by then, it writes later.
    for line in file[since:]:
        line["mono"] = max(number(line, "mono"), ready + 1)
