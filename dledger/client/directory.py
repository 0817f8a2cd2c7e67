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
from dledger.rpc.log_client import ForeignServer, LogClient, NetworkFailure, TlsFailure
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
        self,
        servers: Iterable[str],
        group: str,
        security: Callable[[], ChannelSecurity | None],
        cluster_id: str | None = None,
    ) -> None:
        """`cluster_id`: only servers of this cluster are used."""
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
        # Servers that other servers have named but that are not configured: a client may know only one server
        # of many. With the cluster of the server that named them: a learner that was promoted to a cluster of
        # its own is still a member in the list of its former group, and leads in a later term.
        self._learned: dict[str, str | None] = {}
        self.cluster_id = cluster_id
        self._clusters: dict[str, str] = {}  # of servers, by address, when they last answered
        self._followed: str | None = None  # the cluster of the last leader that a search has found
        #: The highest known term of that cluster. A leader of a later term is accepted immediately.
        self.term = -1

    def client(self, address: str) -> LogClient:
        """Return the client of a server, which need not be a configured one. Call it on the event loop."""
        client, security = self._clients.get(address), self._security()
        if client is not None and client.security is not security:
            self._retire(client)  # the certificate was renewed
            client = None
        if client is None:
            client = self._clients[address] = LogClient(address, self._group, security, self.cluster_id)
        return client

    def _retire(self, client: LogClient) -> None:
        """Close a replaced client once its pending calls are complete."""
        task = asyncio.create_task(client.retire())
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    def no_leader(self, what: str) -> NotLeader:
        """Return the error for a failed search. It contains `what` and the reasons why servers did not
        answer.

        Its code is the code of the last failure because of TLS, or because a configured server belongs to
        another cluster. Without one, it is the code of the last failure if no configured server answered, and
        NOT_LEADER otherwise.
        """
        failures = list(self._failures.values())
        codes = [
            failure.code
            for address, failure in self._failures.items()
            if isinstance(failure, TlsFailure)
            or (isinstance(failure, ForeignServer) and address in self.addresses)
        ]
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
        named_by = self._clusters.get(address)
        if to and to != address and self._redirections < MAX_REDIRECTIONS and self._is_known(to, named_by):
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
            self.require_own(other, status)
            if status.cluster_id != (self._followed or status.cluster_id):
                raise ForeignServer(f"{other} is a node of another cluster than the known leader")
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
        assert search.result is not None
        cluster_id, term, address = search.result
        self.term = max(self.term, term) if cluster_id == self._followed else term
        self._followed = cluster_id
        return address

    def require_own(self, address: str, status: NodeStatus) -> None:
        """Raise ForeignServer if the server belongs to another cluster than the client, or than the server
        that has named it."""
        self._clusters[address] = status.cluster_id
        expected = self.cluster_id or self._learned.get(address)
        if expected is not None and status.cluster_id != expected:
            raise ForeignServer(f"{address} is a node of cluster {status.cluster_id!r}, not of {expected!r}")

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

    def learn(self, address: str, cluster_id: str | None) -> bool:
        """Add a server named by another one, of the cluster `cluster_id` if that is known. Returns True if it
        is new and within the limit."""
        if address in self.addresses or address in self._learned or len(self._learned) >= MAX_LEARNED:
            return False
        self._learned[address] = cluster_id
        return True

    def _is_known(self, address: str, cluster_id: str | None) -> bool:
        """Return True if the server is configured, or learned now or earlier."""
        return self.learn(address, cluster_id) or address in self.addresses or address in self._learned

    def _forget_learned(self) -> None:
        for address in list(self._learned)[:-_KEPT]:
            del self._learned[address]
            self._failures.pop(address, None)
            self._clusters.pop(address, None)
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


class _ClusterView:
    """Answers of the servers of one cluster during a search."""

    def __init__(self, configured: Collection[str]) -> None:
        self._configured = configured
        self.terms: dict[str, int] = {}  # terms of the servers that have responded
        self.newest: NodeStatus | None = None  # the answer with the newest change of the members
        self.best: tuple[int, str] | None = None  # term and address of the best candidate

    def add(self, address: str, status: NodeStatus) -> None:
        self.terms[address] = status.term
        if status.is_leader and (self.best is None or status.term > self.best[0]):
            self.best = (status.term, address)
        elif self.best is not None and self.best[1] == address and not status.is_leader:
            self.best = None

    def forget(self, address: str) -> None:
        """Note that the server belongs to another cluster now."""
        self.terms.pop(address, None)
        if self.best is not None and self.best[1] == address:
            self.best = None

    def is_change(self, status: NodeStatus) -> bool:
        """Return True if the members have changed since the newest answer, and note it.

        Index 0 is no change: it is that of the first leader's first entry.
        """
        if status.membership_index <= (0 if self.newest is None else self.newest.membership_index):
            return False
        self.newest = status
        return True

    @property
    def _voters(self) -> Collection[str]:
        """Addresses of the voters of the newest known configuration. The configured servers stand for the
        first members."""
        if self.newest is None:
            return self._configured
        return [member.address for member in self.newest.members if member.role == "voter"]

    def is_believable(self, known_term: int) -> bool:
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
        knowing_no_later = sum(self.terms.get(voter, term + 1) <= term for voter in voters)
        return term > known_term >= 0 or knowing_no_later >= majority


class _LeaderSearch:
    """The state of one search for a leader."""

    def __init__(self, directory: LeaderDirectory) -> None:
        self._directory = directory
        # Terms and configurations of two clusters must not be compared: servers may belong to several, if one
        # was recovered by force, or a learner was promoted to a cluster of its own.
        self._views: dict[str, _ClusterView] = {}
        self._probes: list[asyncio.Task[None]] = []
        self.result: tuple[str, int, str] | None = None  # cluster id, term and address of the leader
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
        directory = self._directory
        try:
            status = await directory.client(address).get_status(PROBE_TIMEOUT)
            directory.require_own(address, status)
        except DLedgerError as failure:
            directory.note_failure(address, await directory.explained(address, failure))
            raise
        directory.note_failure(address, None)
        for cluster_id, other in self._views.items():
            if cluster_id != status.cluster_id:
                other.forget(address)
        view = self._views.setdefault(status.cluster_id, _ClusterView(directory.addresses))
        view.add(address, status)
        self._learn(view, status)
        # A member that was recovered by force leads in a later term than any of its former cluster.
        if self.result is None and view.is_believable(directory.term):
            assert view.best is not None
            self.result = (status.cluster_id, *view.best)
            self.found.set()
        return self.found.is_set()

    def _learn(self, view: _ClusterView, status: NodeStatus) -> None:
        """Query the leader that the server names and, if the members have changed, all members."""
        named = [status.leader_address]
        if view.is_change(status):
            named += [member.address for member in status.members]
        for address in named:
            if address and self._directory.learn(address, status.cluster_id):
                self.start(address)
