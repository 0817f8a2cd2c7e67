"""Clients of a simulated cluster that append, with and without sessions, and read.

They know no more than real clients: requests and responses are lost or delayed, nodes crash in the meantime,
and the named leader may be wrong. The oracle receives every response when the node sends it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dledger.errors import DLedgerError, NotLeader, SessionExpired
from dledger.replica.shell import AppendOutcome
from dledger.testing.checks.oracle import ClientAppend, ClientOutcome, ClientRead
from dledger.testing.world import NodeLife, SimWorld

RETRY_MS = 20


class _SimClient:
    """Common part of all clients: the node in use, and requests that get at most one response."""

    def __init__(self, sim: SimWorld, name: str, rng: Random) -> None:
        self.sim = sim
        self.name = name
        self.rng = rng
        self.is_stopped = False
        self.completed = 0
        self._node = rng.choice(sim.profile.node_ids)
        self._made = 0

    def start(self) -> None:
        self._think()

    def work(self) -> None:
        raise AssertionError("abstract")

    def _think(self) -> None:
        self.sim.clock.after(self.rng.randint(0, self.sim.profile.think_max_ms), self._wake)

    def _wake(self) -> None:
        if not self.is_stopped:
            self.work()

    def _new_bodies(self) -> list[bytes]:
        """Return bodies that are unique in the run."""
        self._made += 1
        profile, rng = self.sim.profile, self.rng
        return [
            b"%s:%d:%d:" % (self.name.encode(), self._made, i) + b"x" * rng.randint(0, profile.body_max_bytes)
            for i in range(rng.randint(1, profile.max_batch))
        ]

    def _request(
        self, send: Callable[[NodeLife, Callable[[object], None]], None], answered: Callable[[object], None]
    ) -> None:
        """Call `send` on the chosen node after a delay. `answered` receives the response, or None after a
        timeout."""
        sim, is_done = self.sim, [False]

        def finish(answer: object) -> None:
            if not is_done[0]:
                is_done[0] = True
                if isinstance(answer, DLedgerError | None):
                    self._choose_node(answer)
                answered(answer)

        def answer_leaves(answer: object) -> None:
            if sim.network.loss and self.rng.random() < sim.network.loss:
                return
            sim.clock.after(sim.network.delay_ms(), lambda: finish(answer))

        def arrive() -> None:
            process = sim.nodes[node].process
            if process is None:
                finish(None)
                return
            process.post(lambda: send(process, answer_leaves))

        node = self._node
        sim.clock.after(sim.network.delay_ms(), arrive)
        sim.clock.after(sim.profile.request_timeout_ms, lambda: finish(None))

    def _choose_node(self, error: DLedgerError | None) -> None:
        if isinstance(error, NotLeader) and error.leader_id is not None and self.rng.random() < 0.9:
            self._node = error.leader_id
        else:
            self._node = self.rng.choice(self.sim.profile.node_ids)


class PlainClient(_SimClient):
    """Appends without a session. Sends a new batch after every response, whatever its outcome."""

    def work(self) -> None:
        append = ClientAppend(self._new_bodies(), None)
        self.sim.oracle.begin(append)

        def send(process: NodeLife, reply: Callable[[object], None]) -> None:
            submit(self.sim, process, append, reply)

        self._request(send, self._answered)

    def _answered(self, answer: object) -> None:
        if isinstance(answer, AppendOutcome):
            self.completed += 1
        self._think()


class SessionClient(_SimClient):
    """Appends in a session, with several batches in flight, each retried until its result is known."""

    def __init__(self, sim: SimWorld, name: str, rng: Random) -> None:
        super().__init__(sim, name, rng)
        self._session_id: int | None = None
        self._next_seq = 1
        self._waiting: dict[int, ClientAppend] = {}  # seq -> batch without a known result

    def work(self) -> None:
        if self._session_id is None:
            self._open()
        elif len(self._waiting) < self.sim.profile.window:
            append = ClientAppend(self._new_bodies(), (self._session_id, self._next_seq))
            self._waiting[self._next_seq] = append
            self._next_seq += 1
            self._try(append)
            if self.rng.random() < 0.5:
                self._think()

    def _open(self) -> None:
        append = ClientAppend((), None, opens_session=True)
        self.sim.oracle.begin(append)

        def send(process: NodeLife, reply: Callable[[object], None]) -> None:
            submit(self.sim, process, append, reply)

        def opened(answer: object) -> None:
            if isinstance(answer, AppendOutcome):
                self._session_id = answer.index
                self._next_seq = 1
            self._think()

        self._request(send, opened)

    def _try(self, append: ClientAppend) -> None:
        sim, asked_of = self.sim, append.session
        assert asked_of is not None
        sim.oracle.tried_again(append)
        sim.oracle.begin(append)

        def send(process: NodeLife, reply: Callable[[object], None]) -> None:
            submit(sim, process, append, reply)

        def answered(answer: object) -> None:
            if self._session_id != asked_of[0] or asked_of[1] not in self._waiting:
                return
            if isinstance(answer, AppendOutcome):
                del self._waiting[asked_of[1]]
                self.completed += 1
                self._think()
            elif isinstance(answer, SessionExpired):
                sim.counts["sessions expired"] += 1
                self._session_id = None
                self._waiting.clear()
                self._think()
            else:
                sim.counts["session retries"] += 1
                sim.clock.after(self.rng.randint(1, RETRY_MS), retry)

        def retry() -> None:
            # Retry after stop(), too: batches in flight are completed.
            if self._session_id == asked_of[0] and asked_of[1] in self._waiting:
                self._try(append)

        self._request(send, answered)

    @property
    def is_settled(self) -> bool:
        """True if no batch waits for a result."""
        return not self._waiting


class SimReader(_SimClient):
    """Linearizable reads. Gets a read point from the leader, then reads on any node that has committed it."""

    def work(self) -> None:
        if self.rng.random() < 0.3:
            # Use other nodes than the one that responded last, so that a deposed leader is detected.
            self._node = self.rng.choice(self.sim.profile.node_ids)
        read = self.sim.oracle.begin_read()

        def send(process: NodeLife, reply: Callable[[object], None]) -> None:
            process.read_index(lambda answer: self._pointed(read, process, answer, reply))

        self._request(send, self._answered)

    def _pointed(
        self,
        read: ClientRead,
        process: NodeLife,
        answer: int | DLedgerError,
        reply: Callable[[object], None],
    ) -> None:
        """Wait until a node, this one or another, has committed the read point."""
        if isinstance(answer, DLedgerError):
            reply(answer)
            return
        server = process
        if self.rng.random() < 0.5:
            other = self.sim.nodes[self.rng.choice(self.sim.profile.node_ids)].process
            server = other or process
        self.sim.wait_committed(server, answer, lambda: self._served(read, answer, reply))

    def _served(self, read: ClientRead, read_index: int, reply: Callable[[object], None]) -> None:
        self.sim.counts["reads"] += 1
        self.sim.oracle.end_read(read, read_index)
        reply(read_index)

    def _answered(self, answer: object) -> None:
        if isinstance(answer, int):
            self.completed += 1
        self._think()


def submit(sim: SimWorld, process: NodeLife, append: ClientAppend, reply: Callable[[object], None]) -> None:
    """Send an append to a node, in a turn of the node. The oracle receives the response before the client."""

    def answered(answer: AppendOutcome | DLedgerError) -> None:
        if isinstance(answer, AppendOutcome):
            sim.counts["appends acknowledged"] += 1
            if answer.duplicate:
                sim.counts["duplicates answered"] += 1
        else:
            sim.counts[f"appends: {answer.code.name}"] += 1
        sim.oracle.answered(append, answer)
        reply(answer)

    process.append(
        list(append.bodies),
        answered,
        session=append.session,
        open_session=append.opens_session,
        timeout_ms=sim.profile.request_timeout_ms,
    )


def is_known(append: ClientAppend) -> bool:
    """Return True if the client knows the outcome."""
    return append.outcome is not ClientOutcome.OPEN
