"""Keeps a broker registered with every NameServer, beside the broker and never in its way."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from broker_adapter.errors import BrokerError, NameServerRefused, NameServerUnavailable, Status
from broker_adapter.namesrv.remoting_link import RemotingNameServerLink
from broker_adapter.namesrv.rpc_client import NameServerLink
from broker_adapter.namesrv.values import NO_TERM, Registration, RegistrationAnswer
from dledger import TlsFiles
from dledger.platform import ClientTls, get_logger

_log = get_logger("registrar")

#: A broker registers so often, in seconds; RocketMQ's default.
EVERY_S = 30.0
#: One NameServer may take so long to answer, in seconds.
ANSWER_S = 5.0
_RETRY_FIRST_S = 0.1
_RETRY_MOST_S = 5.0


@dataclass(frozen=True, slots=True)
class RegistrarStatus:
    """How it stands with one NameServer."""

    address: str
    registered: bool = False  # now, with the newest registration
    registered_unix_ms: int = 0  # last success, wall clock; 0: never
    last_error: str = ""  # since that
    failures: int = 0  # in a row
    master_address: str = ""  # of the broker name, as that NameServer has it
    master_term: int = NO_TERM
    master_ha_address: str = ""  # where slaves fetch its log; "": not told


class RegistrationSession(Protocol):
    """Registrations of one node at one NameServer, in one of its protocols."""

    async def send(self, given: Registration) -> None:
        """NameServerRefused; NameServerUnavailable."""

    async def receive(self) -> RegistrationAnswer:
        """The answer to it. NameServerRefused; NameServerUnavailable."""

    def next_answer(self) -> asyncio.Future[RegistrationAnswer]:
        """Done without a `send` if the session has ended, with NameServerUnavailable. Do not cancel it."""

    async def finish(self) -> None:
        """Un-register. NameServerUnavailable."""

    async def close(self) -> None: ...


class _Link(Protocol):
    def open_session(self) -> RegistrationSession: ...

    async def close(self) -> None: ...


class Registrar:
    """Made on any thread; `update`, `status` and `stop` on one event loop.

    Each NameServer has a task of its own, so that a dead one delays nobody. A broken stream un-registers the
    broker over there; it is registered again as soon as the NameServer can be reached.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tls: TlsFiles | None = None,
        *,
        by_remoting: Sequence[str] = (),
        remoting_tls: bool = False,
        every_s: float = EVERY_S,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`tls` None: plain text. `by_remoting`: NameServers of RocketMQ's own; `remoting_tls`: over
        TLS, too. No address: nothing is registered. `jitter`: from 0 to 1.

        ConfigError if the files of `tls` are no good.
        """
        security = None if tls is None else ClientTls(tls)

        def by_grpc(address: str) -> NameServerLink:
            return NameServerLink(address, security() if security is not None else None)

        def by_remote_calls(address: str) -> RemotingNameServerLink:
            context = security.stream_context if security is not None and remoting_tls else None
            return RemotingNameServerLink(address, tls=context)

        links: dict[str, Callable[[str], _Link]] = {
            **dict.fromkeys(by_remoting, by_remote_calls),
            **dict.fromkeys(addresses, by_grpc),
        }
        self._clerks = [
            _Clerk(address, partial(link, address), every_s, unix_ms, jitter)
            for address, link in links.items()
        ]

    def update(self, given: Registration) -> None:
        """Register this from now on, at once. Returns without waiting; the newest one counts."""
        for clerk in self._clerks:
            clerk.update(given)

    def status(self) -> Mapping[str, RegistrarStatus]:
        """address -> how it stands."""
        return {clerk.status.address: clerk.status for clerk in self._clerks}

    async def stop(self, timeout_s: float = 1.0) -> None:
        """Un-register where that is possible within the time. Repeatable; `update` does nothing after it."""
        await asyncio.gather(*(clerk.stop(timeout_s) for clerk in self._clerks))


class _Clerk:
    """Registers with one NameServer."""

    def __init__(
        self,
        address: str,
        link: Callable[[], _Link],
        every_s: float,
        unix_ms: Callable[[], int],
        jitter: Callable[[], float],
    ) -> None:
        self.status = RegistrarStatus(address)
        self._link = link
        self._every_s = every_s
        self._unix_ms, self._jitter = unix_ms, jitter
        self._newest: Registration | None = None
        self._updated = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def update(self, given: Registration) -> None:
        if self._stopping.is_set():
            return
        self._newest = given
        self.status = replace(self.status, registered=False)
        self._updated.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        self._updated.set()
        if self._task is not None:
            _, late = await asyncio.wait((self._task,), timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.status = replace(self.status, registered=False)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._keep_registered()
            except BrokerError as error:
                self._failed(error)
            except Exception as error:
                # Whatever it is, it must not end the registration for good, nor reach the broker.
                _log.exception("registration failed", server=self.status.address)
                self._failed(NameServerUnavailable(Status.NAMESRV_UNREACHABLE, repr(error)))
            if not self._stopping.is_set():
                await self._pause(self._retry_s())

    async def _keep_registered(self) -> None:
        """One connection, from the first registration to its end."""
        link = self._link()
        try:
            session = link.open_session()
            try:
                while not self._stopping.is_set():
                    await self._register(session)
                with suppress(NameServerUnavailable, TimeoutError):
                    async with asyncio.timeout(ANSWER_S):
                        await session.finish()
            finally:
                await session.close()
        finally:
            await link.close()

    async def _register(self, session: RegistrationSession) -> None:
        """Once, and wait until it is time for the next. NameServerUnavailable ends the connection."""
        assert self._newest is not None, "the task starts with the first one"
        given = self._newest
        self._updated.clear()
        refusal: NameServerRefused | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                await session.send(given)
                answer = await session.receive()
        except TimeoutError:
            raise NameServerUnavailable(
                Status.NAMESRV_UNREACHABLE, f"{self.status.address}: no answer within {ANSWER_S:g} s"
            ) from None
        except NameServerRefused as error:
            refusal = error
            self._failed(error)
            wait_s = self._retry_s()
        else:
            if self.status.failures or not self.status.registered_unix_ms:
                _log.info("registered", server=self.status.address, broker=given.broker_name)
            self.status = RegistrarStatus(
                self.status.address, given is self._newest, self._unix_ms(), "", 0, *answer
            )
            wait_s = self._every_s
        # The end of the stream shows here; nothing else comes unasked.
        next_answer = session.next_answer()
        await self._pause(wait_s, next_answer)
        if next_answer.done():
            if refusal is not None:
                raise refusal  # it says more than that the server has hung up after it
            next_answer.result()

    async def _pause(self, seconds: float, *also: asyncio.Future[Any]) -> None:
        """Until the time is over, something newer is to be registered, or `also` is done."""
        updated = asyncio.ensure_future(self._updated.wait())
        try:
            await asyncio.wait((updated, *also), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            updated.cancel()

    def _failed(self, error: BrokerError) -> None:
        status = self.status
        if not status.failures:
            _log.warning("not registered", server=status.address, reason=str(error))
        self.status = replace(status, registered=False, last_error=str(error), failures=status.failures + 1)

    def _retry_s(self) -> float:
        """Longer with each failure, and never in step with other brokers."""
        longest = min(_RETRY_MOST_S, _RETRY_FIRST_S * 2.0 ** min(self.status.failures - 1, 16))
        return longest * (0.5 + self._jitter() / 2)
