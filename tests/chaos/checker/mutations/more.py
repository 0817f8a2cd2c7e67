"""Defects in what a clean trace has little or nothing of: batches, look-ups by key, routes, orderly groups;
and what is only worth a warning. Importing this puts them among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import (
    acked,
    add,
    ask,
    line_of_invoke,
    lines,
    middle,
    mutation,
    number,
    remove,
)
from tests.chaos.checker.synthetic import Line, Trace, digest_of

SECOND_NS = 1_000_000_000


def become(trace: Trace, after: Line, line: Line, **fields: object) -> None:
    """A copy of another line of the same writer, behind `after`."""
    copy = add(trace, after)
    copy.clear()
    copy.update(line | fields)  # type: ignore[operator]
    trace.renumber()


def later(trace: Trace, than: Line, ns: int) -> None:
    """All that came after a line came so much later still."""
    begun = number(than, "mono")
    for line in trace.all_lines():
        if number(line, "mono") > begun:
            line["mono"] = number(line, "mono") + ns
            line["wall"] = number(line, "wall") + ns


@mutation("P6")
def half_a_batch_is_stored(trace: Trace) -> None:
    """Two sends that a fault left without an answer were one batch; only the first message is there."""
    ends = lines(trace, Ev.OP, type="info")
    there, gone = (line_of_invoke(trace, end) for end in ends[:2])
    for line, i in ((there, 0), (gone, 1)):
        item = add(trace, there)
        about = {name: line[name] for name in ("mid", "digest")}
        kept = {
            k: v for k, v in item.items() if k in {"v", "run", "src", "inc", "host", "mono", "wall", "op"}
        }
        item.clear()
        item.update(kept | {"ev": "item", "i": i} | about)
    for line in lines(trace, Ev.OP, op=there["op"]):
        line["f"] = "send_batch"
    for name in ("mid", "digest"):
        del there[name]
    remove(trace, *lines(trace, Ev.OP, op=gone["op"]))


@mutation("B3")
def a_look_up_finds_another_key(trace: Trace) -> None:
    look_up(trace, claims_all=False, finds=True)


@mutation("B3")
def a_look_up_misses_a_message(trace: Trace) -> None:
    look_up(trace, claims_all=True, finds=False)


@mutation("B3")
def a_look_up_finds_a_message_twice(trace: Trace) -> None:
    look_up(trace, claims_all=False, finds=True)
    invoke, _ = next(acked(trace))
    found = lines(trace, Ev.DLV, op=9_000_001)[0]
    sent = lines(trace, Ev.OP, type="invoke", mid=found["mid"])[0]
    invoke["key"], sent["key"] = "k2", "k1"
    add(trace, found, i=number(found, "i") + 1)


@mutation("L13")
def a_look_up_shows_a_message_with_another_key(trace: Trace) -> None:
    look_up(trace, claims_all=False, finds=True)
    invoke, _ = next(acked(trace))
    found = lines(trace, Ev.DLV, op=9_000_001)[0]
    sent = lines(trace, Ev.OP, type="invoke", mid=found["mid"])[0]
    invoke["key"], sent["key"] = "k2", "k1"
    found["key"] = "k3"


def look_up(trace: Trace, *, claims_all: bool, finds: bool) -> None:
    """For the key of the first acknowledged message; what it finds is another one."""
    invoke, _ = next(acked(trace))
    invoke["key"] = "k1"
    last = lines(trace, Ev.OP, type="ok", f="commit_off", src="client:c0")[-1]
    ask(trace, last, 9_000_001, "lookup", answer={"end_claim": claims_all})
    asked = lines(trace, Ev.OP, op=9_000_001, type="invoke")[0]
    asked["key"] = "k1"
    if finds:
        other = next(line for line in lines(trace, Ev.DLV, src="client:c0") if line["mid"] != invoke["mid"])
        become(trace, asked, other, op=asked["op"], mono=asked["mono"])


@mutation("C3 L10 L11")
def an_orderly_group_is_given_the_later_message_first(trace: Trace) -> None:
    for pull in lines(trace, Ev.OP, type="ok", f="pull"):
        found = lines(trace, Ev.DLV, op=pull["op"])
        # Not the first, which may be the first that the consumer ever gets.
        if len(found) == 3:
            one, other = found[1:]
            for name in ("mid", "digest", "lidx", "qoff"):
                one[name], other[name] = other[name], one[name]
            return


@mutation("C6 C18 L14")
def a_consumer_begins_behind_the_stored_offset(trace: Trace) -> None:
    """What the one before it had processed and not stored is passed over."""
    taken = lines(trace, Ev.MEMBER, e="assign")[-1]
    first = next(
        line
        for line in lines(trace, Ev.DLV, group="G", consumer=taken["consumer"])
        if line["q"] == taken["q"] and line["epoch"] == taken["epoch"]
    )
    remove(trace, first, *lines(trace, Ev.DONE, mid=first["mid"], op=first["op"]))


# -- files of nodes that are damaged in the end --------------------------------------------------------


def damage(trace: Trace, *, told: int) -> None:
    """Two entries of a node cannot be read, of which the trace says so of the first `told`."""
    invoke, _ = middle(trace)
    entries = lines(trace, Ev.DUMP, node="n2")
    first = next(i for i, line in enumerate(entries) if line.get("mid") == invoke["mid"])
    gone = entries[first : first + 2]
    begin = number(gone[0], "lidx")
    hole = {"ev": "meta", "e": "dump_hole", "lidx": begin, "last": begin + told - 1, "text": "checksum"}
    envelope = {name: gone[0][name] for name in ("v", "run", "src", "inc", "host", "mono", "wall")}
    add(trace, entries[-1]).clear()
    file = trace.files[str(gone[0]["src"]), number(gone[0], "inc")]
    next(line for line in file if not line).update(
        envelope | hole | {"node": "n2", "ledger": gone[0]["ledger"]}
    )
    for unit in lines(trace, Ev.CQ, node="n2"):
        if unit["lidx"] in [line["lidx"] for line in gone]:
            unit["lidx"] = -1
    remove(trace, *gone)


@mutation("W9", broker=False)
def damage_is_told_of(trace: Trace) -> None:
    damage(trace, told=2)


@mutation("W9 B1 S6")
def damage_is_told_of_below_a_broker(trace: Trace) -> None:
    damage(trace, told=2)


@mutation("W9 L3 L6c", broker=False)
def more_is_gone_than_is_damaged(trace: Trace) -> None:
    damage(trace, told=1)


# -- warnings -----------------------------------------------------------------------------------------


@mutation("L12", broker=False)
def a_late_read_says_that_it_saw_all(trace: Trace) -> None:
    asked = lines(trace, Ev.OP, type="invoke", f="get", stale=True)[0]
    lines(trace, Ev.OP, type="ok", op=asked["op"])[0]["end_claim"] = True


@mutation("S7")
def a_promotion_takes_long(trace: Trace) -> None:
    later(trace, lines(trace, Ev.ROLE, e="elected", term=3)[0], 11 * SECOND_NS)


@mutation("S8 S13")
def a_route_leads_back_to_an_earlier_master(trace: Trace) -> None:
    first, *_, last = lines(trace, Ev.OP, type="ok", f="commit_off", src="client:c0")
    ask(trace, first, 9_000_001, "route", answer={"term": 2})
    ask(trace, last, 9_000_002, "route", answer={"term": 1})


@mutation("R14 V2")
def a_leader_is_elected_long_after_the_last_fault(trace: Trace) -> None:
    remove(trace, lines(trace, Ev.FAULT, e="end", fault=2)[0])
    later(trace, lines(trace, Ev.FAULT, e="begin", fault=2)[0], 20 * SECOND_NS)


@mutation("C7")
def a_consumer_goes_on_for_long_after_another_took_its_queue(trace: Trace) -> None:
    a_consumer_goes_on_for_a_moment_after_another_took_its_queue(trace)
    taken = lines(trace, Ev.MEMBER, e="assign")[-1]
    first = lines(trace, Ev.DLV, group="G", consumer=taken["consumer"], epoch=taken["epoch"])[0]
    later(trace, first, 6 * SECOND_NS)


@mutation("")
def a_consumer_goes_on_for_a_moment_after_another_took_its_queue(trace: Trace) -> None:
    taken = lines(trace, Ev.MEMBER, e="assign")[-1]
    before = next(
        line
        for line in reversed(lines(trace, Ev.DLV, group="G"))
        if line["q"] == taken["q"] and line["consumer"] != taken["consumer"]
    )
    *_, last, end = trace.files[str(before["src"]), 0]
    become(trace, last, before, attempt=1, mono=end["mono"])


# -- what a run proves --------------------------------------------------------------------------------


@mutation("V1")
def the_faults_begin_before_anything_was_acknowledged(trace: Trace) -> None:
    begin = lines(trace, Ev.FAULT, e="begin")[0]
    begin["mono"] = trace.files[str(begin["src"]), number(begin, "inc")][0]["mono"]


@mutation("V3")
def of_most_sends_nobody_knows_what_became(trace: Trace) -> None:
    """As many as there are otherwise, and a few; nothing of them was stored."""
    asked, end = next(acked(trace))
    count = len(lines(trace, Ev.OP, type="invoke", f=asked["f"])) + 5
    kept = {"v", "run", "src", "inc", "seq", "host", "wall", "ev", "f"}
    added = []
    for n in range(count):
        own = {"op": 9_100_000 + n, "proc": f"lost-{n}", "mono": end["mono"]}
        message = {"mid": 9_100_000 + n, "digest": digest_of("lost", n)}
        added += [asked | own | message, {k: v for k, v in end.items() if k in kept} | own | {"type": "info"}]
    file = trace.files[str(end["src"]), number(end, "inc")]
    at = next(i for i, line in enumerate(file) if line is end) + 1
    file[at:at] = added
    trace.renumber()


@mutation("V4")
def only_one_term_acknowledged(trace: Trace) -> None:
    """The others elected leaders, of which no client ever heard."""
    for _, end in acked(trace):
        if end["term"] != 2:
            del end["term"]


# -- what is as it should be --------------------------------------------------------------------------


def restarted(trace: Trace) -> str:
    """A node that a kill ended, and that was started again."""
    return next(src for src, inc in trace.files if inc == 1 and src.startswith("node:"))


@mutation("")
def a_restarted_node_has_a_lower_incarnation(trace: Trace) -> None:
    """As one that was wiped may draw."""
    src = restarted(trace)
    trace.files[src, 9] = trace.files.pop((src, 0))
    for line in trace.files[src, 9]:
        line["inc"] = 9


def wipe(trace: Trace, node: str) -> None:
    """The kill took its files, too."""
    for line in lines(trace, Ev.FAULT, f="kill"):
        if line["e"] == "end" or line["targets"] == node:
            line["f"] = "wipe"


@mutation("")
def a_wiped_node_begins_again_in_term_0(trace: Trace) -> None:
    src = restarted(trace)
    recover = next(line for line in trace.files[src, 1] if line.get("e") == "recover")
    node = {name: recover[name] for name in ("node", "ev")}
    recover |= {"wiped": True, "term": 0}
    wipe(trace, str(recover["node"]))
    kept = {name: recover[name] for name in ("v", "run", "src", "inc", "seq", "host", "wall", "mono")}
    become(trace, recover, kept | node, ev="raft", e="follower", term=0, role_epoch=0)


def vote_before_a_restart(trace: Trace, *, wiped: bool) -> None:
    """A node votes for itself, restarts, and votes for another one in that term."""
    src = restarted(trace)
    voted = next(line for line in trace.files[src, 1] if line.get("e") == "vote")
    assert voted["candidate"] != voted["node"]
    recover = next(line for line in trace.files[src, 1] if line.get("e") == "recover")
    recover["wiped"] = wiped
    if wiped:
        wipe(trace, str(recover["node"]))
    last = [line for line in trace.files[src, 0] if line["ev"] == "raft"][-1]
    before = trace.files[src, 0][: trace.files[src, 0].index(last)]
    end = [line for line in before if line.get("e") == "append"][-1]
    own = {"candidate": voted["node"], "last_index": end["last"], "last_term": end["eterm"]}
    become(trace, last, voted, inc=last["inc"], mono=last["mono"], **own)
    stood = lines(trace, Ev.RAFT, e="candidate")[0]
    of_node = {name: last[name] for name in ("src", "inc", "node", "mono")}
    become(trace, last, stood, term=voted["term"], **of_node)
    # The vote was durable.
    synced = next(
        line
        for line in lines(trace, Ev.DISK, e="vote_synced", node=voted["node"])
        if line["term"] == voted["term"]
    )
    file = trace.files[str(synced["src"]), 0]
    at = next(i for i, line in enumerate(file) if number(line, "mono") > number(last, "mono"))
    file.insert(at, synced | {"vote": voted["node"], "mono": last["mono"]})
    trace.renumber()


@mutation("")
def a_wiped_node_had_voted_for_itself(trace: Trace) -> None:
    vote_before_a_restart(trace, wiped=True)


@mutation("R2 R18")
def a_restarted_node_had_voted_for_itself(trace: Trace) -> None:
    vote_before_a_restart(trace, wiped=False)


@mutation("")
def a_term_is_durable_after_the_node_has_gone_on_to_the_next(trace: Trace) -> None:
    voted = lines(trace, Ev.RAFT, e="term_vote", term=2)[0]
    kept = {name: value for name, value in voted.items() if name != "vote"}
    before = lines(trace, Ev.RAFT, e="term_vote", term=1, node=voted["node"])[0]
    become(trace, voted, kept, term=1, vote=before["vote"])
    become(trace, voted, kept, e="follower", term=2, role_epoch=4)
    remove(trace, voted)


@mutation("R12")
def a_vote_is_forgotten_by_a_node_that_runs(trace: Trace) -> None:
    voted = lines(trace, Ev.RAFT, e="term_vote", term=2)[0]
    kept = {name: value for name, value in voted.items() if name != "vote"}
    become(trace, voted, kept, mono=number(voted, "mono") + 1)


@mutation("R4 R12")
def a_set_term_becomes_durable(trace: Trace) -> None:
    voted = lines(trace, Ev.RAFT, e="term_vote", term=2)[0]
    become(trace, voted, {name: value for name, value in voted.items() if name != "vote"}, term=1)


def read_of_queues(trace: Trace) -> None:
    """Readers of queues are not told in which entry a message is."""
    for line in lines(trace, Ev.DLV):
        if "qoff" in line:
            for name in ("lidx", "ledger", "eterm"):
                line.pop(name, None)


@mutation("")
def readers_are_not_told_of_entries(trace: Trace) -> None:
    read_of_queues(trace)


@mutation("C10")
def a_message_is_delivered_before_its_entry_is_committed(trace: Trace) -> None:
    """To a group, which is told where it stands in its queue only."""
    read_of_queues(trace)
    given = lines(trace, Ev.DLV, group="G")[5]
    (entry, *_) = lines(trace, Ev.DUMP, mid=given["mid"])
    known = [
        line for line in lines(trace, Ev.RAFT, e="commit") if number(line, "lidx") >= number(entry, "lidx")
    ]
    early = number(known[0], "mono") - 1
    file = trace.files[str(given["src"]), number(given, "inc")]
    for line in file[: file.index(given) + 1]:
        line["mono"] = min(number(line, "mono"), early)
