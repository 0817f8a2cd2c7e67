"""The servers of a cluster, and the search for the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import tenacity

from dledger.errors import Code, DLedgerError, NotLeader
from dledger.infra.addresses import check_address
from dledger.infra.port_kinds import ALPN, PortHints, PortKind
from dledger.infra.transport.channels import ChannelSecurity
from dledger.infra.transport.tls import ClientTls
from dledger.rpc.log_client import LogClient, NetworkFailure, TlsFailure
from dledger.status.model import NodeStatus

#: Time limit of a status request in a search, in seconds.
PROBE_TIMEOUT = 0.25
#: Pause between two requests to one server, in seconds. An election takes about 200 ms. Shorter pauses would
#: put load on the nodes during an election, longer ones would increase the fail-over time.
PROBE_PAUSE = tenacity.wait_random(0.02, 0.05)
#: The pause after the first seconds without a leader.
PROBE_PAUSE_LATER = tenacity.wait_random(0.05, 0.1)
_EAGER_PROBES = 60
#: gRPC delivers the last events of cancelled calls from its own thread, a moment later (seconds). An event
#: loop that was closed earlier would print them as errors.
_SETTLE = 0.01
#: This many redirections without a success indicate a cycle. The client then queries all servers.
MAX_REDIRECTIONS = 2
#: Maximum number of servers learned from others, each with a connection, because every response may name a
#: new server. The next search keeps only the newest `_KEPT`.
MAX_LEARNED = 64
_KEPT = 8
#: Servers whose failures an error names.
_SHOWN_FAILURES = 5


class LeaderDirectory:
    """Channels by address, and the last known leader. Belongs to one event loop."""

    def __init__(
        self, servers: Iterable[str], group: str, security: Callable[[], ChannelSecurity | None]
    ) -> None:
        self.addresses = tuple(dict.fromkeys(servers))
        if not self.addresses:
            raise ValueError("at least one server address is needed")
        for address in self.addresses:
            check_address(address)
        self._group = group
        self._security = security
        tls = security if isinstance(security, ClientTls) else None
        self._hints = PortHints(PortKind.GRPC, lambda: None if tls is None else tls.stream_context(ALPN))
        self._clients: dict[str, LogClient] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._failures: dict[str, DLedgerError] = {}  # of the last request of a search, by server
        self._leader: str | None = None
        self._search: asyncio.Task[str] | None = None
        self._redirections = 0
        self.closed = False
        # Leaders that servers have named but that are not configured: a client may know only one server of
        # many.
        self._learned: dict[str, None] = {}
        #: The highest known term. A leader of a later term is accepted immediately.
        self.term = -1

    def client(self, address: str) -> LogClient:
        """Return the client of a server, which need not be a configured one. Call it on the event loop."""
        client, security = self._clients.get(address), self._security()
        if client is not None and client.security is not security:
            self._retire(client)  # the certificate was renewed
            client = None
        if client is None:
            client = self._clients[address] = LogClient(address, self._group, security)
        return client

    def _retire(self, client: LogClient) -> None:
        """Close a replaced client once its pending calls are complete."""
        task = asyncio.create_task(client.retire())
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    def no_leader(self, what: str) -> NotLeader:
        """Return the error for a failed search. It contains `what` and the reasons why servers did not
        answer.

        Its code is the code of the last TLS failure. Without one, it is the code of the last failure if no
        configured server answered, and NOT_LEADER otherwise.
        """
        failures = list(self._failures.values())
        codes = [failure.code for failure in failures if isinstance(failure, TlsFailure)]
        if not codes and self._failures.keys() >= set(self.addresses):
            codes = [failure.code for failure in failures]
        causes = (failure.message for failure in failures[-_SHOWN_FAILURES:])
        return NotLeader("; ".join([what, *causes]), code=codes[-1] if codes else Code.NOT_LEADER)

    @property
    def search_problem(self) -> NotLeader | None:
        """The reason why the current search has found no leader yet, or None if no search runs."""
        is_searching = self._leader is None and self._search is not None and not self._search.done()
        return self.no_leader("no leader was found yet") if is_searching else None

    @property
    def leader_address(self) -> str | None:
        """The last known leader, or None."""
        return self._leader

    async def leader(self) -> LogClient:
        """Return the known leader, or search until one is found. The search has no time limit, so set a
        deadline on the call."""
        if self._leader is None:
            if self._search is None or self._search.done():
                self._search = asyncio.create_task(self._find())
                # If all callers are gone, retrieve the exception, so that it is not reported as lost.
                self._search.add_done_callback(lambda task: task.cancelled() or task.exception())
            # Shielded, because other callers need the result of the same search when this one gives up.
            self._leader = await asyncio.shield(self._search)
        return self.client(self._leader)

    def confirmed(self, term: int) -> None:
        """Record that the leader has acted as leader in `term`."""
        self._redirections = 0
        if term > self.term:
            self.term = term

    def lost(self, address: str) -> None:
        """Record that `address` does not lead or does not respond. If it was the known leader, no leader is
        known."""
        if self._leader == address:
            self._leader = None

    def redirected(self, address: str, to: str | None) -> None:
        """Record that `address` does not lead and that it names `to` as the leader, if it knows one."""
        if self._leader not in (None, address):
            return  # newer information is known
        self._leader = None
        if to and to != address and self._redirections < MAX_REDIRECTIONS and self._is_known(to):
            self._redirections += 1
            self._leader = to
        else:
            self._redirections = 0

    def appoint(self, address: str, term: int) -> None:
        """Record that `address` claims to lead in `term`."""
        self._leader = address
        self.confirmed(term)

    async def statuses(self, timeout: float) -> dict[str, NodeStatus | DLedgerError]:
        """Return the status of every configured server, or its error, with concurrent requests."""

        async def status_of(address: str) -> NodeStatus | DLedgerError:
            try:
                return await self.client(address).get_status(timeout)
            except DLedgerError as error:
                return await self.explained(address, error)

        answers = await asyncio.gather(*map(status_of, self.addresses))
        return dict(zip(self.addresses, answers, strict=True))

    async def other_leader(self, address: str) -> bool:
        """Return True if a server other than `address` leads in a later term, and make it the leader."""

        async def later_term_of(other: str) -> tuple[int, str]:
            status = await self.client(other).get_status(PROBE_TIMEOUT)
            if not status.is_leader or status.term <= self.term:
                raise NotLeader(f"{other} does not lead in a term later than the known one")
            return status.term, other

        # Process responses as they arrive, because the silent server may also be in the list under another
        # name.
        requests = [
            asyncio.create_task(later_term_of(a)) for a in (*self.addresses, *self._learned) if a != address
        ]
        try:
            for answer in asyncio.as_completed(requests):
                with suppress(DLedgerError):
                    term, other = await answer
                    self.appoint(other, term)
                    return True
            return False
        finally:
            for task in requests:
                task.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    async def _find(self) -> str:
        """Query all servers independently until a leader can be trusted."""
        self._forget_learned()
        search = _LeaderSearch(self)
        for address in (*self.addresses, *self._learned):
            search.start(address)
        try:
            await search.found.wait()
        finally:
            await search.stop()
        assert search.best is not None
        self.term = max(self.term, search.best[0])
        return search.best[1]

    async def explained(self, address: str, failure: DLedgerError) -> DLedgerError:
        """Return the failure, or an error with the server that listens at the address in place of a node."""
        if not (isinstance(failure, NetworkFailure) and failure.may_be_other_port):
            return failure
        hint = await self._hints.hint(address)
        return NetworkFailure(hint) if hint else failure

    def note_failure(self, address: str, failure: DLedgerError | None) -> None:
        """Record the failure of a server, or its answer, for `no_leader`."""
        self._failures.pop(address, None)
        if failure is not None:
            self._failures[address] = failure

    def learn(self, address: str) -> bool:
        """Add a server named by another one. Returns True if it is new and within the limit."""
        if address in self.addresses or address in self._learned or len(self._learned) >= MAX_LEARNED:
            return False
        self._learned[address] = None
        return True

    def _is_known(self, address: str) -> bool:
        """Return True if the server is configured, or learned now or earlier."""
        return self.learn(address) or address in self.addresses or address in self._learned

    def _forget_learned(self) -> None:
        for address in list(self._learned)[:-_KEPT]:
            del self._learned[address]
            self._failures.pop(address, None)
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


class _LeaderSearch:
    """The state of one search for a leader."""

    def __init__(self, directory: LeaderDirectory) -> None:
        self._directory = directory
        self._terms: dict[str, int] = {}  # terms of the servers that have responded
        self._newest: NodeStatus | None = None  # the answer with the newest change of the members
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
        """Query one server until the search is over. An unreachable server does not slow down the others."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_not_result(bool) | tenacity.retry_if_exception_type(DLedgerError),
            wait=tenacity.wait_chain(*[PROBE_PAUSE] * _EAGER_PROBES, PROBE_PAUSE_LATER),
        )
        await retrying(self._probe_once, address)

    async def _probe_once(self, address: str) -> bool:
        try:
            status = await self._directory.client(address).get_status(PROBE_TIMEOUT)
        except DLedgerError as failure:
            self._directory.note_failure(address, await self._directory.explained(address, failure))
            raise
        self._directory.note_failure(address, None)
        self._terms[address] = status.term
        self._learn(status)
        if status.is_leader and (self.best is None or status.term > self.best[0]):
            self.best = (status.term, address)
        elif self.best is not None and self.best[1] == address and not status.is_leader:
            self.best = None
        if self._is_believable():
            self.found.set()
        return self.found.is_set()

    def _learn(self, status: NodeStatus) -> None:
        """Query the leader that the server names and, if the members have changed, all members.

        Index 0 is no change: it is that of the first leader's first entry.
        """
        named = [status.leader_address]
        if status.membership_index > (0 if self._newest is None else self._newest.membership_index):
            self._newest = status
            named += [member.address for member in status.members]
        for address in named:
            if address and self._directory.learn(address):
                self.start(address)

    @property
    def _voters(self) -> Collection[str]:
        """Addresses of the voters of the newest known configuration. The configured servers stand for the
        first members."""
        if self._newest is None:
            return self._directory.addresses
        return [member.address for member in self._newest.members if member.role == "voter"]

    def _is_believable(self) -> bool:
        """Return True if the best candidate can be trusted. A deposed leader may still claim to lead in an
        old term.

        A leader is trusted immediately only if its term is later than any seen before. Otherwise a majority
        must know no later term, because every election of a later leader would have needed a node of this
        majority. A single node in a later term proves nothing, because the others may have refused it.
        """
        if self.best is None:
            return False
        term, _ = self.best
        voters = self._voters
        majority = len(voters) // 2 + 1
        knowing_no_later = sum(self._terms.get(voter, term + 1) <= term for voter in voters)
        return term > self._directory.term >= 0 or knowing_no_later >= majority
