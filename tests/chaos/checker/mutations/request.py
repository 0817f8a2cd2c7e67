"""Answers, reads and files that do not fit what was asked, sent or said beside them. Importing this puts them
among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, add, lines, middle, mutation, number, remove
from tests.chaos.checker.synthetic import Trace


@mutation("P9")
def an_answer_is_about_another_queue(trace: Trace) -> None:
    invoke, answer = middle(trace)
    answer["topic"], answer["q"] = invoke["topic"], number(invoke, "q") - 7


@mutation("P9")
def a_read_brings_a_message_of_another_queue(trace: Trace) -> None:
    """It is at its own place, and stands in the other queue's read as well."""
    one, other = (lines(trace, Ev.OP, type="ok", f="drain")[k]["op"] for k in (0, 1))
    last = lines(trace, Ev.DLV, op=one)[-1]
    more = add(trace, last, i=number(last, "i") + 1)
    brought = lines(trace, Ev.DLV, op=other)[0]
    more |= {name: brought[name] for name in ("mid", "digest", "q", "qoff", "lidx") if name in brought}


@mutation("W2")
def a_message_of_a_batch_is_for_another_queue(trace: Trace) -> None:
    invoke, _ = middle(trace)
    about = {name: invoke[name] for name in ("v", "run", "src", "inc", "host", "mono", "wall", "op", "topic")}
    item = about | {"ev": "item", "i": 0, "mid": invoke["mid"], "digest": invoke["digest"], "q": invoke["q"]}
    file = trace.files[str(invoke["src"]), number(invoke, "inc")]
    file.insert(file.index(invoke), item)
    for name in ("mid", "digest"):
        del invoke[name]
    invoke["q"] = 1 - number(invoke, "q")
    for line in lines(trace, Ev.OP, op=invoke["op"]):
        line["f"] = "send_batch"
    trace.renumber()


@mutation("W2")
def an_operation_never_ends(trace: Trace) -> None:
    """It is the last one of its process."""
    *_, (_, answer) = acked(trace)
    remove(trace, answer)


@mutation("L14")
def a_consumer_was_to_begin_before_its_first_message(trace: Trace) -> None:
    """It asked from there, and what lies between did not come."""
    read = next(
        line
        for line in lines(trace, Ev.OP, f="pull", type="invoke", q=0)
        if number(line, "from_off") > 1 and lines(trace, Ev.DLV, op=line["op"])
    )
    read["from_off"] = number(read, "from_off") - 2


@mutation("L14")
def a_read_goes_on_beyond_the_end_of_a_queue(trace: Trace) -> None:
    answer = lines(trace, Ev.OP, f="drain", type="ok")[-1]
    answer["next_off"] = number(answer, "next_off") + 1


@mutation("P8", broker=False)
def a_read_goes_on_beyond_what_is_committed(trace: Trace) -> None:
    answer = lines(trace, Ev.OP, f="drain", type="ok")[-1]
    answer["next_off"] = number(answer, "next_off") + 1


@mutation("W12")
def an_entry_stands_in_the_files_twice(trace: Trace) -> None:
    entry = lines(trace, Ev.DUMP, internal=True)[0]
    add(trace, entry)


@mutation("W12")
def a_committed_entry_is_said_to_be_none(trace: Trace) -> None:
    lines(trace, Ev.DUMP, internal=True)[0]["is_committed"] = False


@mutation("W12")
def a_message_in_a_file_is_said_to_let_the_log_begin_later(trace: Trace) -> None:
    entry = next(line for line in lines(trace, Ev.DUMP) if "mid" in line)
    entry["purge_to"] = number(entry, "lidx") - 1


@mutation("W12")
def an_entry_of_a_file_lets_go_what_comes_after_it(trace: Trace) -> None:
    entry = lines(trace, Ev.DUMP, internal=True)[0]
    entry["purge_to"] = number(entry, "lidx") + 1


@mutation("W12")
def an_entry_lets_the_log_begin_later_on_one_node_only(trace: Trace) -> None:
    entry = lines(trace, Ev.DUMP, internal=True)[-1]
    entry["purge_to"] = 1


@mutation("W14")
def a_line_says_less_than_its_like(trace: Trace) -> None:
    del lines(trace, Ev.RAFT, e="follower")[0]["role_epoch"]


@mutation("W14")
def an_answer_says_what_no_answer_says(trace: Trace) -> None:
    for line in lines(trace, Ev.OP, f="commit_off", type="ok"):
        line["lidx"] = 0


@mutation("V2")
def more_faults_happened_than_were_planned(trace: Trace) -> None:
    lines(trace, Ev.META, e="run_begin")[0]["planned_faults"] = 1


@mutation("V2")
def a_fault_ends_as_another_one(trace: Trace) -> None:
    lines(trace, Ev.FAULT, e="end", f="isolate")[0]["f"] = "delay"


@mutation("W6")
def nobody_knows_what_the_flush_mode_means(trace: Trace) -> None:
    lines(trace, Ev.META, e="run_begin")[0]["flush_mode"] = "sync"


@mutation("R21")
def an_append_leaves_a_hole(trace: Trace) -> None:
    append = lines(trace, Ev.STORE, e="append", node="n3")[-1]
    append["lidx"] = number(append, "lidx") + 1


@mutation("R21")
def a_voter_says_that_its_log_is_shorter(trace: Trace) -> None:
    """So the candidate's is not behind it."""
    vote = lines(trace, Ev.RAFT, e="vote")[-1]
    vote["last_index"] = number(vote, "last_index") - 1


@mutation("R21")
def what_is_durable_falls(trace: Trace) -> None:
    lines(trace, Ev.STORE, e="flush", node="n3")[-1]["lidx"] = 0


@mutation("R21")
def a_node_comes_back_with_another_history(trace: Trace) -> None:
    for line in lines(trace, Ev.STORE, e="recover"):
        line["chain"] = "0" if line["ended"] == -1 else "another"


@mutation("R12 R21")
def a_node_calls_its_log_lost_and_nothing_took_it(trace: Trace) -> None:
    for line in lines(trace, Ev.STORE, e="recover"):
        line["wiped"] = line["ended"] != -1
        if line["wiped"]:
            line["ended"] = line["committed"] = -1


@mutation("W11")
def a_sync_covers_more_than_was_ever_written(trace: Trace) -> None:
    synced = lines(trace, Ev.DISK, e="synced", node="n3")[0]
    synced["lidx"] = number(synced, "lidx") + 1000


@mutation("W5")
def clocks_may_be_an_hour_apart(trace: Trace) -> None:
    lines(trace, Ev.META, e="run_begin")[0]["clock_bound_ns"] = 3600 * 10**9


@mutation("W6 W8")
def a_log_is_told_of_by_half_a_name(trace: Trace) -> None:
    log = lines(trace, Ev.META, e="log")[0]
    del log["q"]


@mutation("B8")
def a_node_has_a_message_in_no_index(trace: Trace) -> None:
    """It is a follower: no look-up of a client shows that."""
    lines(trace, Ev.DUMP, node="n3", q=0)[-1]["indexed"] = False


@mutation("B1")
def units_say_the_same_wrong_size_on_all_nodes(trace: Trace) -> None:
    for unit in lines(trace, Ev.CQ, q=0, qoff=1):
        unit["size"] = 101


def hash_of(tag: str) -> int:
    """As Java has it."""
    code = 0
    for letter in tag:
        code = (31 * code + ord(letter)) % 2**32
    return code - 2**32 if code >= 2**31 else code


def tag_all(trace: Trace) -> None:
    """Every message has a tag, and files its hash. One tag is too long to be looked at, and one foreign."""
    tags = {0: "a", 1: "CustomerOrderPaid", 2: "t" * 70, 3: "bezahlt-ä"}
    for line in trace.all_lines():
        tag = tags[number(line, "mid") % 4] if "mid" in line else ""
        if tag and ("digest" in line or line["ev"] == Ev.ITEM) and line["ev"] != Ev.DUMP:
            line["tag"] = tag
        if line["ev"] == Ev.DUMP and "qoff" in line:
            line["tag_hash"] = hash_of(tag)
    hashes = {line["lidx"]: line["tag_hash"] for line in lines(trace, Ev.DUMP) if "tag_hash" in line}
    for unit in lines(trace, Ev.CQ):
        unit["tag_hash"] = hashes[unit["lidx"]]


@mutation("")
def units_say_the_hashes_of_tags(trace: Trace) -> None:
    tag_all(trace)


@mutation("B1")
def nodes_hash_a_tag_as_nobody_else_does(trace: Trace) -> None:
    """All of them, and so does the reader of their files: consumers with filters ask in vain."""
    tag_all(trace)
    of_long = hash_of("CustomerOrderPaid")
    for line in (*lines(trace, Ev.DUMP), *lines(trace, Ev.CQ)):
        if line.get("tag_hash") == of_long:
            line["tag_hash"] = of_long + 2**32 if of_long < 0 else of_long - 2**32


@mutation("R6 R23")
def a_follower_says_another_term_of_an_entry(trace: Trace) -> None:
    lines(trace, Ev.STORE, e="append", node="n3")[1]["eterm"] = 7


@mutation("W8")
def a_queue_is_assigned_that_there_is_not(trace: Trace) -> None:
    assign = lines(trace, Ev.MEMBER, e="assign")[-1]
    add(trace, assign, q=9, off=0)


@mutation("W2 C5")
def a_consumer_is_through_with_another_place_than_it_was_given(trace: Trace) -> None:
    done = lines(trace, Ev.DONE)[0]
    done["qoff"] = number(done, "qoff") + 50
