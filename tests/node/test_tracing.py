"""What a node tells its trace, and in which order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos.trace.schema import VERSION
from dledger.client import AsyncClient
from dledger.core.messages import VoteRequest
from dledger.core.values import HardState
from dledger.errors import NotLeader
from dledger.node.async_shell import AsyncShell
from dledger.node.machine.state_machine import AppliedEntry, StateMachine
from dledger.node.server import NodeServer
from dledger.node.setup.config import parse_config
from dledger.node.setup.trace import NodeTrace
from dledger.node.tracing import TracingShell
from dledger.store.identity import Identity, init_directory
from tests.chaos.checker.raft_rules import broken_rules
from tests.chaos.checker.synthetic import Line, Trace
from tests.node.local import CLUSTER, GROUP, PATIENT, until
from tests.process.cluster import free_ports


class Recorder:
    """Implements NodeTrace."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def begin(self, node_id: str, incarnation: int) -> None:
        assert not self.events
        self.begun.append((node_id, incarnation))

    def event(self, ev: str, e: str, fields: dict[str, Any]) -> None:
        self.events.append((f"{ev}.{e}", fields))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [fields for found, fields in self.events if found == name]


def make_node(folder: Path, trace: NodeTrace | None, machine: StateMachine | None = None) -> NodeServer:
    directory = folder / "n1"
    if not directory.exists():
        init_directory(directory, Identity(CLUSTER, GROUP, "n1", data_file_size=4 << 20))
    content = {
        "directory": str(directory),
        "node_id": "n1",
        "cluster_id": CLUSTER,
        "group": GROUP,
        "members": {"n1": f"127.0.0.1:{free_ports(1)[0]}"},
        "timing": PATIENT,
    }
    return NodeServer(parse_config(content), machine, trace=trace, owned=machine is not None)


def check_rules(folder: Path, *lives: Recorder) -> None:
    """What a node, alone, has told in its lives keeps the rules of Raft."""
    trace, mono = Trace("alone"), 0
    for life, recorder in enumerate(lives):
        lines = trace.files.setdefault(("node:n1", life), [])
        for name, fields in recorder.events:
            mono += 1
            ev, e = name.split(".")
            about: Line = {"ev": ev, "e": e, "node": "n1", "mono": mono, "wall": mono}
            lines.append({"v": VERSION, "run": "alone", "src": "node:n1", "inc": life, **about, **fields})
    trace.renumber()
    trace.write(folder / "trace")
    assert broken_rules([folder / "trace"]) == []


async def run(folder: Path, trace: Recorder, bodies: int) -> None:
    node = make_node(folder, trace)
    await node.start()
    try:
        assert isinstance(node._shell, TracingShell)
        await until(lambda: node.node_status().is_leader)
        async with AsyncClient([node.address], group=GROUP, session=False) as client:
            for _ in range(bodies):
                await client.append(b"x")
    finally:
        await node.stop()


async def test_a_node_tells_of_its_election_and_of_each_append_in_order(tmp_path: Path) -> None:
    trace = Recorder()
    await run(tmp_path, trace, 3)
    names = [name for name, _ in trace.events]
    assert [node for node, _ in trace.begun] == ["n1"]
    assert names[0] == "store.recover" and trace.events[0][1]["ended"] == -1
    # Alone it wins at once; but nothing is acknowledged before the vote is durable.
    assert names.index("raft.term_vote") < names.index("raft.vote") < names.index("raft.ack")
    assert names.index("raft.candidate") < names.index("raft.leader")
    (vote,) = trace.of("raft.vote")
    assert vote["candidate"] == "n1" and vote["last_index"] == vote["cand_last_index"] == -1
    assert [ack["lidx"] for ack in trace.of("raft.ack")] == [1, 2, 3], "behind the no-op"
    for ack in trace.of("raft.ack"):
        at = trace.events.index(("raft.ack", ack))
        before = trace.events[:at]
        assert any(name == "raft.commit" and fields["lidx"] >= ack["lidx"] for name, fields in before)
        assert any(name == "store.flush" and fields["lidx"] >= ack["lidx"] for name, fields in before)
    ranges = [(append["lidx"], append["last"]) for append in trace.of("store.append")]
    assert [n for first, last in ranges for n in range(first, last + 1)] == [0, 1, 2, 3]
    check_rules(tmp_path, trace)


@asynccontextmanager
async def leading(folder: Path, trace: Recorder) -> AsyncIterator[tuple[TracingShell, int]]:
    """The shell of a node that leads alone, and its term."""
    node = make_node(folder, trace)
    await node.start()
    try:
        await until(lambda: node.node_status().is_leader)
        shell = node._shell
        assert isinstance(shell, TracingShell)
        yield shell, node.node_status().term
    finally:
        await node.stop()


async def test_a_vote_that_is_told_after_the_term_has_risen_is_told_with_both_logs(tmp_path: Path) -> None:
    trace = Recorder()
    async with leading(tmp_path, trace) as (shell, term):
        # As they pass it when the disk is slow: the vote, a higher term, and then what is durable of it.
        shell._note_end(HardState(term + 1, "n1"))
        shell._note_end(HardState(term + 2, None))
        shell._note_end(HardState(term + 2, "n2"))
        shell._vote(term + 1, "n1")
    (vote,) = (found for found in trace.of("raft.vote") if found["term"] == term + 1)
    assert vote["candidate"] == "n1" and vote["last_index"] == vote["cand_last_index"]
    assert vote["last_term"] == vote["cand_last_term"]


async def test_a_vote_that_is_told_after_its_candidate_asked_again_is_told_with_both_logs(
    tmp_path: Path,
) -> None:
    trace = Recorder()
    async with leading(tmp_path, trace) as (shell, term):
        # As they pass it when the disk is slow, and the candidate has given up before the vote is durable.
        for later, end in ((1, 7), (2, 9)):
            request = VoteRequest(term + later, "n2", end, term, pre_vote=False, transfer=False, round=later)
            shell.receive("n2", request, None)
        shell._note_end(HardState(term + 1, "n2"))
        shell._vote(term + 1, "n2")
    (vote,) = (found for found in trace.of("raft.vote") if found["candidate"] == "n2")
    assert (vote["cand_last_index"], vote["cand_last_term"]) == (7, term)


async def test_a_restarted_node_tells_what_it_found(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    await run(tmp_path, first, 2)
    await run(tmp_path, second, 0)
    assert second.begun[0][1] > first.begun[0][1]
    (found,) = second.of("store.recover")
    assert found["ended"] == first.of("store.flush")[-1]["lidx"] == 2
    assert found["chain"] == first.of("store.append")[-1]["chain"]
    assert found["vote"] == "n1" and found["term"] == first.of("raft.leader")[0]["term"]
    check_rules(tmp_path, first, second)


class Collector:
    """A state machine that keeps what it is given."""

    def __init__(self) -> None:
        self.indexes: list[int] = []

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        self.indexes += [entry.index for entry in entries]

    def save(self) -> Iterable[bytes]:
        return ()

    def load(self, chunks: Iterable[bytes]) -> None: ...


async def test_a_node_with_a_state_machine_tells_what_it_takes_and_applies(tmp_path: Path) -> None:
    trace, machine = Recorder(), Collector()
    node = make_node(tmp_path, trace, machine=machine)
    await node.start()
    try:
        await until(lambda: node.node_status().is_leader)
        status = node.node_status()
        for _ in range(3):
            expected = (status.term, status.role_epoch)
            await node.append_batch([1, 1], lambda _: [b"x", b"y"], expected=expected)
        with pytest.raises(NotLeader):
            await node.append_batch([1], lambda _: [b"x"], expected=(status.term, status.role_epoch + 1))
        await node.wait_applied()
    finally:
        await node.stop()
    assert [taken["term"] for taken in trace.of("raft.accept")] == [status.term] * 3, "and no refused one"
    applied = [n for told in trace.of("raft.apply") for n in range(told["lidx"], told["last"] + 1)]
    assert applied == list(range(applied[0], 1 + machine.indexes[-1])) and set(machine.indexes) < set(applied)
    for told in trace.of("raft.apply"):
        before = trace.events[: trace.events.index(("raft.apply", told))]
        committed = [fields["lidx"] for name, fields in before if name == "raft.commit"]
        assert max(committed) >= told["last"]
    check_rules(tmp_path, trace)


async def test_without_a_trace_nothing_stands_between(tmp_path: Path) -> None:
    node = make_node(tmp_path, None)
    await node.start()
    try:
        assert type(node._shell) is AsyncShell
    finally:
        await node.stop()
