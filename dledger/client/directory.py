"""Which servers there are, and which of them leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import tenacity

from dledger.errors import DLedgerError, NotLeader
from dledger.rpc.log_client import LogClient, TlsFailure
from dledger.rpc.transport.channels import ChannelSecurity
from dledger.status.model import NodeStatus

#: A server that does not say within this time how it is counts as silent, in seconds.
PROBE_TIMEOUT = 0.25
#: Pause between two questions to one server, in seconds. An election takes some 200 ms: asking more often
#: costs the electing nodes more than it gains, asking less often shows in the fail-over time.
PROBE_PAUSE = tenacity.wait_random(0.02, 0.05)
#: ... after the first seconds without a leader.
PROBE_PAUSE_LATER = tenacity.wait_random(0.05, 0.1)
_EAGER_PROBES = 60
#: gRPC delivers the last events of cancelled calls from its own thread a moment later, in seconds. An event
#: loop that is closed by then would have them printed as errors.
_SETTLE = 0.01
#: So many redirections without a success in between are a circle; then ask everybody.
MAX_REDIRECTIONS = 2
#: Servers that others named, with a connection each: a server may name another one with each answer. When the
#: next search begins the newest ones are kept.
MAX_LEARNED = 64
_KEPT = 8


class Directory:
    """Channels by address, and the leader as far as it is known. Belongs to one event loop."""

    def __init__(
        self, servers: Iterable[str], group: str, security: Callable[[], ChannelSecurity | None]
    ) -> None:
        self.addresses = tuple(dict.fromkeys(servers))
        if not self.addresses:
            raise ValueError("at least one server address is needed")
        self._group = group
        self._security = security
        self._clients: dict[str, LogClient] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._tls_failures: dict[str, TlsFailure] = {}
        self._leader: str | None = None
        self._search: asyncio.Task[str] | None = None
        self._redirections = 0
        self.closed = False
        # Leaders that servers named and nobody configured: a client may be given one server of many.
        self._learned: dict[str, None] = {}
        #: The highest term in which anything was heard; a leader of a later term is believed at once.
        self.term = -1

    def client(self, address: str) -> LogClient:
        """The client of one server; also of one that was not configured but named by another."""
        client, security = self._clients.get(address), self._security()
        if client is not None and client.security is not security:
            self._retire(client)  # the certificate was renewed
            client = None
        if client is None:
            client = self._clients[address] = LogClient(address, self._group, security)
        return client

    def _retire(self, client: LogClient) -> None:
        """What is under way on its connection may end there."""
        task = asyncio.create_task(client.retire())
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    def no_leader(self, what: str) -> NotLeader:
        """The error for it: `what`, and why a server could not be talked to if TLS is the reason."""
        if not self._tls_failures:
            return NotLeader(what)
        last = next(reversed(self._tls_failures.values()))
        return NotLeader(f"{what}; {last.message}", code=last.code)

    @property
    def leader_address(self) -> str | None:
        """The leader as last known; None: not known."""
        return self._leader

    async def leader(self) -> LogClient:
        """The leader: as remembered, else searched for until one is found. Give it a deadline."""
        if self._leader is None:
            if self._search is None or self._search.done():
                self._search = asyncio.create_task(self._find())
                # All who asked may have gone: then nobody else looks at how it ended.
                self._search.add_done_callback(lambda task: task.cancelled() or task.exception())
            # Shielded: other waiters want the result of the same search when this one gives up.
            self._leader = await asyncio.shield(self._search)
        return self.client(self._leader)

    def confirmed(self, term: int) -> None:
        """The leader did what a leader does, in `term`."""
        self._redirections = 0
        if term > self.term:
            self.term = term

    def lost(self, address: str) -> None:
        """`address` does not lead or does not answer. Forgets the leader if it is this one."""
        if self._leader == address:
            self._leader = None

    def redirected(self, address: str, to: str | None) -> None:
        """`address` says that it does not lead, and that `to` does, if anyone."""
        if self._leader not in (None, address):
            return  # something newer is known already
        self._leader = None
        if to and to != address and self._redirections < MAX_REDIRECTIONS and self._is_known(to):
            self._redirections += 1
            self._leader = to
        else:
            self._redirections = 0

    def appoint(self, address: str, term: int) -> None:
        """`address` said itself that it leads, in `term`."""
        self._leader = address
        self.confirmed(term)

    async def statuses(self, timeout: float) -> dict[str, NodeStatus | DLedgerError]:
        """What every configured server says of itself, asked at once."""

        async def ask(address: str) -> NodeStatus | DLedgerError:
            try:
                return await self.client(address).get_status(timeout)
            except DLedgerError as error:
                return error

        answers = await asyncio.gather(*map(ask, self.addresses))
        return dict(zip(self.addresses, answers, strict=True))

    async def other_leader(self, address: str) -> bool:
        """Whether a server other than `address` leads in a later term; then it is the leader from now on."""

        async def ask(other: str) -> tuple[int, str]:
            status = await self.client(other).get_status(PROBE_TIMEOUT)
            if not status.is_leader or status.term <= self.term:
                raise NotLeader(f"{other} does not lead in a later term")
            return status.term, other

        # As they come: the silent one itself is among the addresses, under this name or another.
        asked = [asyncio.create_task(ask(a)) for a in (*self.addresses, *self._learned) if a != address]
        try:
            for answer in asyncio.as_completed(asked):
                with suppress(DLedgerError):
                    term, other = await answer
                    self.appoint(other, term)
                    return True
            return False
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _find(self) -> str:
        """Ask all servers, each in its own rhythm, until one can be believed to lead."""
        self._forget_learned()
        search = _Search(self)
        for address in (*self.addresses, *self._learned):
            search.start(address)
        try:
            await search.found.wait()
        finally:
            await search.stop()
        assert search.best is not None
        self.term = max(self.term, search.best[0])
        return search.best[1]

    def note_tls(self, address: str, failure: TlsFailure | None) -> None:
        """How a server was last found; for `no_leader`."""
        self._tls_failures.pop(address, None)
        if failure is not None:
            self._tls_failures[address] = failure

    def learn(self, address: str) -> bool:
        """Note a server that another one names. True if it is new, and there is room for it."""
        if address in self.addresses or address in self._learned or len(self._learned) >= MAX_LEARNED:
            return False
        self._learned[address] = None
        return True

    def _is_known(self, address: str) -> bool:
        """By now."""
        return self.learn(address) or address in self.addresses or address in self._learned

    def _forget_learned(self) -> None:
        for address in list(self._learned)[:-_KEPT]:
            del self._learned[address]
            self._tls_failures.pop(address, None)
            if (client := self._clients.pop(address, None)) is not None:
                self._retire(client)

    async def close(self) -> None:
        self.closed = True
        if self._search is not None:
            self._search.cancel()
            with suppress(asyncio.CancelledError):
                await self._search
        for task in self._retired:
            task.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients.values()))
        await asyncio.sleep(_SETTLE)


class _Search:
    """The state of one search for a leader."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._terms: dict[str, int] = {}  # of the configured servers that have answered
        self._probes: list[asyncio.Task[None]] = []
        self.best: tuple[int, str] | None = None
        self.found = asyncio.Event()

    def start(self, address: str) -> None:
        self._probes.append(asyncio.create_task(self._probe(address)))

    async def stop(self) -> None:
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)

    async def _probe(self, address: str) -> None:
        """Ask one server until the search is over. A server that is down costs the others nothing."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_not_result(bool) | tenacity.retry_if_exception_type(DLedgerError),
            wait=tenacity.wait_chain(*[PROBE_PAUSE] * _EAGER_PROBES, PROBE_PAUSE_LATER),
        )
        await retrying(self._ask, address)

    async def _ask(self, address: str) -> bool:
        try:
            status = await self._directory.client(address).get_status(PROBE_TIMEOUT)
        except TlsFailure as failure:
            self._directory.note_tls(address, failure)
            raise
        self._directory.note_tls(address, None)
        if address in self._directory.addresses:
            self._terms[address] = status.term
        if status.leader_address and self._directory.learn(status.leader_address):
            self.start(status.leader_address)
        if status.is_leader and (self.best is None or status.term > self.best[0]):
            self.best = (status.term, address)
        elif self.best is not None and self.best[1] == address and not status.is_leader:
            self.best = None
        if self._is_believable():
            self.found.set()
        return self.found.is_set()

    def _is_believable(self) -> bool:
        """A deposed leader that has not heard of it also says that it leads, in an old term.

        So a leader is believed at once only in a later term than any heard of before; otherwise when a
        majority knows no later term: without one of these no later leader was elected. A single node in a
        later term proves nothing, however late it is: the others may refuse it.
        """
        if self.best is None:
            return False
        term, _ = self.best
        majority = len(self._directory.addresses) // 2 + 1
        knowing_no_later = sum(known <= term for known in self._terms.values())
        return term > self._directory.term >= 0 or knowing_no_later >= majority
