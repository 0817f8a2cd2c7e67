"""Runs in which entries were removed by rule, and what was removed, or said to be, against it. Importing this
puts the latter among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import add, everywhere, lines, mutation, number, remove
from tests.chaos.checker.mutations.more import look_up
from tests.chaos.checker.synthetic import LEDGER, Line, Trace

#: All entries up to here are removed, and the entry that lets them go: the first of the second term.
GONE, PURGE = 6, 10
KEEP = 1000
#: Everything is removed sooner, by all that cluster time may gain.
TOO_LONG_MS = 1_101


def remove_well(trace: Trace, **kept: int) -> None:
    """All nodes remove the first entries, as an entry of the log lets them, with `KEEP` bytes behind them.
    The final reads show what is left. `kept`: what the run is to keep."""
    first = _mids_let_go(trace)
    let_go(trace, **kept)
    finals = {line["op"] for line in lines(trace, Ev.OP, f="drain")}
    remove(trace, *[line for line in lines(trace, Ev.DLV) if line["mid"] in first and line["op"] in finals])
    for q in (0, 1):
        tell_begin(trace, q, 9_100_000 + q, first_kept(trace, q))


def _mids_let_go(trace: Trace) -> set[object]:
    return {line["mid"] for line in lines(trace, Ev.DUMP) if number(line, "lidx") <= GONE and "mid" in line}


def let_go(trace: Trace, **kept: int) -> None:
    """The same, and the final reads still show all."""
    lines(trace, Ev.META, e="run_begin")[0].update(kept)
    gone = [line for line in lines(trace, Ev.DUMP) if number(line, "lidx") <= GONE]
    remove(trace, *gone)
    for line in lines(trace, Ev.DUMP, lidx=PURGE):
        line["purge_to"] = GONE
    for line in lines(trace, Ev.CQ):
        line["lidx"] = -1 if number(line, "lidx") <= GONE else line["lidx"]
    for node in ("n2", "n3"):
        tell_purge(trace, node)
    for node in ("n1", "n2", "n3"):
        remove_files(trace, node, GONE, KEEP)
    trace.renumber()


def tell_purge(trace: Trace, node: str) -> None:
    """A node says that it has forgotten the first entries."""
    commit = max(lines(trace, Ev.RAFT, e="commit", node=node), key=lambda line: number(line, "lidx"))
    told = {name: commit[name] for name in ("v", "run", "src", "inc", "seq", "host", "mono", "wall", "node")}
    file = trace.files[str(commit["src"]), number(commit, "inc")]
    file.insert(file.index(commit) + 1, {**told, "ev": Ev.STORE.value, "e": "purge", "lidx": GONE})
    trace.renumber()


def first_kept(trace: Trace, q: int) -> int:
    """The offset of the first message of a queue that stands in files."""
    return min(number(line, "qoff") for line in lines(trace, Ev.DUMP, q=q))


def tell_begin(trace: Trace, q: int, op: int, begin: int) -> None:
    """The final reader asks where a queue begins."""
    last = lines(trace, Ev.OP, f="drain", type="ok")[-1]
    asked = {name: last[name] for name in ("proc", "node")}
    invoke = add(trace, last, op=op, f="min_off", type="invoke", topic="t", q=q)
    end = add(trace, invoke, type="ok", min_off=begin, **asked)
    for line, kept in ((invoke, ("topic", "q")), (end, ("min_off", "node", "term"))):
        for name in ("topic", "q", "node", "term", "min_off", "max_off", "next_off", "end_claim", "count"):
            if name not in kept:
                line.pop(name, None)


def remove_files(trace: Trace, node: str, index: int, behind: int) -> None:
    """The recorder of syncs sees the files up to an index go, the last of all it sees."""
    file = trace.files[f"disk:{node}", 0]
    last = max(at for at, line in enumerate(file) if line["ev"] == Ev.DISK)
    about: Line = {"e": "removed", "ledger": LEDGER, "lidx": index, "size": behind}
    envelope = {name: file[last][name] for name in ("v", "run", "src", "inc", "seq", "host", "ev", "node")}
    mono = number(file[last + 1], "mono") - 1
    file.insert(last + 1, {**envelope, **about, "mono": mono, "wall": mono})
    trace.renumber()


@mutation("P10")
def what_is_removed_has_too_little_behind_it(trace: Trace) -> None:
    remove_well(trace, keep_bytes=KEEP + 1)


@mutation("P10")
def what_is_removed_is_too_young(trace: Trace) -> None:
    remove_well(trace, keep_ms=TOO_LONG_MS)


@mutation("P10")
def what_is_removed_is_too_young_and_has_too_little_behind_it(trace: Trace) -> None:
    remove_well(trace, keep_ms=TOO_LONG_MS, keep_bytes=KEEP + 1)


@mutation("P10")
def something_is_removed_though_everything_is_to_be_kept(trace: Trace) -> None:
    remove_well(trace)


@mutation("B6")
def a_node_removes_more_than_a_committed_entry_lets_go(trace: Trace) -> None:
    remove_well(trace, keep_bytes=KEEP)
    remove(trace, *lines(trace, Ev.DUMP, node="n2", lidx=GONE + 1))
    remove_files(trace, "n2", GONE + 1, KEEP)


@mutation("L6b L14")
def a_purge_that_only_a_node_tells_of(trace: Trace) -> None:
    """The files have what the final reads do not show, and the node says that it let that go."""
    tell_purge(trace, "n2")
    mids = {line["mid"] for line in lines(trace, Ev.DUMP) if number(line, "lidx") <= GONE and "mid" in line}
    finals = {line["op"] for line in lines(trace, Ev.OP, f="drain")}
    remove(trace, *[line for line in lines(trace, Ev.DLV) if line["mid"] in mids and line["op"] in finals])
    trace.renumber()


@mutation("L6b")
def the_final_reads_begin_behind_what_was_removed(trace: Trace) -> None:
    remove_well(trace, keep_bytes=KEEP)
    first = min(lines(trace, Ev.DUMP), key=lambda line: (number(line, "lidx"), "mid" not in line))
    finals = {line["op"] for line in lines(trace, Ev.OP, f="drain")}
    lost = [line for line in lines(trace, Ev.DLV) if line["mid"] == first["mid"] and line["op"] in finals]
    assert lost
    remove(trace, *lost)
    trace.renumber()


@mutation("B2 L6b L14 P10")
def the_final_reads_lack_what_was_purged_after_them(trace: Trace) -> None:
    """Which was too early."""
    remove_well(trace, keep_ms=TOO_LONG_MS)
    purge_after_all(trace)


def purge_after_all(trace: Trace) -> None:
    """The nodes forget only after the final reads."""
    last = max(number(line, "mono") for line in lines(trace, Ev.OP, f="drain"))
    for purge in lines(trace, Ev.STORE, e="purge"):
        file = trace.files[str(purge["src"]), number(purge, "inc")]
        file.remove(purge)
        file.append(purge)
        purge["mono"] = purge["wall"] = max(last + 1, *(number(line, "mono") for line in file))
    trace.renumber()


@mutation("B2")
def a_queue_begins_behind_what_was_removed(trace: Trace) -> None:
    remove_well(trace, keep_bytes=KEEP)
    lines(trace, Ev.OP, op=9_100_000, type="ok")[0]["min_off"] = first_kept(trace, 0) + 1


def given(trace: Trace, q: int, qoff: int) -> list[Line]:
    """What a group was given of a message, and made of it."""
    return [*lines(trace, Ev.DLV, group="G", q=q, qoff=qoff), *lines(trace, Ev.DONE, q=q, qoff=qoff)]


@mutation("C1 C5 L11 L14")
def a_consumer_passed_over_what_was_removed_later(trace: Trace) -> None:
    remove_well(trace, keep_bytes=KEEP)
    remove(trace, *given(trace, 1, 3))


@mutation("C1 C6 C18 L14")
def a_consumer_began_behind_what_was_removed_later(trace: Trace) -> None:
    remove_well(trace, keep_bytes=KEEP)
    remove(trace, *given(trace, 1, 0))


@mutation("B3")
def a_look_up_misses_what_was_removed_later(trace: Trace) -> None:
    let_go(trace, keep_bytes=KEEP)
    purge_after_all(trace)
    look_up(trace, claims_all=True, finds=False)


@mutation("L6b L10 L14")
def a_read_passed_over_what_was_removed_later(trace: Trace) -> None:
    let_go(trace, keep_bytes=KEEP)
    purge_after_all(trace)
    finals = {line["op"] for line in lines(trace, Ev.OP, f="drain")}
    remove(trace, *[line for line in lines(trace, Ev.DLV, q=1, qoff=1) if line["op"] in finals])


@mutation("L3")
def a_hole_that_was_removed_later(trace: Trace) -> None:
    """Nobody ever saw the message, and readers came from before it to behind it."""
    let_go(trace, keep_bytes=KEEP)
    purge_after_all(trace)
    mid = lines(trace, Ev.DLV, q=1, qoff=1)[0]["mid"]
    ops = {line["op"] for line in lines(trace, Ev.OP, mid=mid)}
    remove(trace, *everywhere(trace, mid), *[line for line in lines(trace, Ev.OP) if line["op"] in ops])


@mutation("L3 P6")
def a_batch_lacks_what_was_removed_later(trace: Trace) -> None:
    """Its second message was given to somebody before the first was removed, which nobody had seen."""
    let_go(trace, keep_bytes=KEEP)
    purge_after_all(trace)
    second = lines(trace, Ev.DLV, q=1, qoff=3)[0]["mid"]
    first = lines(trace, Ev.DLV, q=1, qoff=2)[0]["mid"]
    sends = [lines(trace, Ev.OP, mid=mid)[0] for mid in (first, second)]
    for i, send in enumerate(sends):
        item = add(trace, sends[0])
        kept = {
            k: v for k, v in item.items() if k in {"v", "run", "src", "inc", "host", "mono", "wall", "op"}
        }
        item.clear()
        item.update(kept | {"ev": "item", "i": i, "mid": send["mid"], "digest": send["digest"]})
    ends = [lines(trace, Ev.OP, op=send["op"], type="ok")[0] for send in sends]
    for line in (sends[0], ends[0]):
        line["f"], line["proc"] = "send_batch", "batch"
    ends[0]["type"] = "info"
    for name in ("mid", "digest"):
        del sends[0][name]
    for name in ("lidx", "qoff", "node", "term"):
        del ends[0][name]
    remove(trace, sends[1], ends[1], *everywhere(trace, first))
