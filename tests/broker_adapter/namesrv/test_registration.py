"""The registrar: every NameServer knows the newest, and none of them holds anything up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from broker_adapter.namesrv.registration import Registrar, _ServerRegistration
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.values import Registration, RegistrationAnswer
from tests.broker_adapter.namesrv.helpers import address_of, name_server, registration, until

NOBODY = "127.0.0.1:1"


@asynccontextmanager
async def registrar(*addresses: str, every_s: float = 30.0) -> AsyncIterator[Registrar]:
    found = Registrar(addresses, every_s=every_s, jitter=lambda: 0.0)
    try:
        yield found
    finally:
        await found.stop()


def ids(server: NameServerProcess) -> dict[str, int]:
    return {entry.node_id: entry.broker_id for entry in server.name_server.brokers()}


def is_registered(found: Registrar, server: NameServerProcess) -> bool:
    return found.status()[server.address].registered


async def test_every_server_is_told_and_dead_ones_stop_nobody(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path / "one") as one,
        name_server(tmp_path / "two") as two,
        registrar(one.address, NOBODY, two.address) as found,
    ):
        found.update(registration("n1", 0, term=4))
        await until(lambda: is_registered(found, one) and is_registered(found, two))
        assert ids(one) == ids(two) == {"n1": 0}
        await until(lambda: found.status()[NOBODY].failures > 1)
        dead, alive = found.status()[NOBODY], found.status()[one.address]
        assert not dead.registered and NOBODY in dead.last_error and dead.registered_unix_ms == 0
        assert (alive.last_error, alive.failures) == ("", 0) and alive.registered_unix_ms > 0
        assert (alive.master_address, alive.master_term) == (address_of("n1"), 4)
        # They do not know of each other.
        one.name_server.unregister("broker-a", "n1", -1)
        assert (ids(one), ids(two)) == ({}, {"n1": 0})


async def test_an_update_is_registered_at_once_and_the_newest_counts(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, registrar(server.address) as found:
        for epoch in range(1, 50):
            found.update(registration("n1", 0, term=epoch, role_epoch=epoch))
        assert not is_registered(found, server)
        await until(lambda: is_registered(found, server))
        assert [entry.term for entry in server.name_server.brokers()] == [49]
        # Those in between were never sent.
        assert server.name_server.counts["accepted"] <= 2
        found.update(registration("n1", 3, term=50, role_epoch=50))
        await until(lambda: ids(server) == {"n1": 3})
        assert len(server.name_server.sessions) == 1


async def test_it_asks_again_and_again(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, registrar(server.address, every_s=0.01) as found:
        found.update(registration("n1", 0))
        await until(lambda: is_registered(found, server))
        server.name_server.register(registration("n2", 0, term=2))
        # It asks again and again, and hears of the new master.
        await until(lambda: found.status()[server.address].master_address == address_of("n2"))
        assert server.name_server.counts["accepted"] == 2


async def test_a_server_that_comes_back_is_told_anew(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server:
        found = Registrar([server.address], jitter=lambda: 0.0)
        found.update(registration("n1", 0))
        await until(lambda: is_registered(found, server))
        address = server.address
    await until(lambda: found.status()[address].failures > 0)
    assert not found.status()[address].registered
    async with name_server(tmp_path, listen=address) as server:
        await until(lambda: ids(server) == {"n1": 0} and is_registered(found, server))
        await found.stop()


async def test_a_refusal_is_shown_and_ends_with_what_is_believed(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, registrar(server.address) as found:
        server.name_server.register(registration("n2", 0, term=9))
        found.update(registration("n1", 0, term=8))
        await until(lambda: "783 NAMESRV_STALE_TERM" in found.status()[server.address].last_error)
        assert ids(server) == {"n2": 0}
        found.update(registration("n1", 1, term=9, role_epoch=2))
        await until(lambda: is_registered(found, server))
        assert ids(server) == {"n1": 1, "n2": 0}
        assert found.status()[server.address].master_address == address_of("n2")


@pytest.mark.slow
async def test_a_full_server_is_shown_as_such_and_tried_again(tmp_path: Path) -> None:
    async with name_server(tmp_path, limits={"max_sessions": 1}) as server:
        first, second = Registrar([server.address]), Registrar([server.address])
        first.update(registration("n1", 0))
        await until(lambda: is_registered(first, server))
        second.update(registration("n2", 2))
        reasons = set()

        def has_failed_often() -> bool:
            status = second.status()[server.address]
            reasons.add(status.last_error[:17])
            return status.failures > 4

        await until(has_failed_often)
        assert reasons == {"", "781 NAMESRV_LIMIT"}  # never that the connection has ended after it
        await first.stop()
        await until(lambda: ids(server) == {"n2": 2})
        await second.stop()


async def test_stopping_unregisters(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server:
        found = Registrar([server.address, NOBODY])
        found.update(registration("n1", 0))
        await until(lambda: is_registered(found, server))
        await found.stop()
        assert ids(server) == {}
        assert not is_registered(found, server)
        found.update(registration("n1", 0, role_epoch=2))  # of no effect
        await found.stop()
        assert not server.name_server.sessions and ids(server) == {}


async def test_stopping_waits_for_no_server_that_is_silent() -> None:
    """It accepts connections, and says nothing."""
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = "{}:{}".format(*silent.sockets[0].getsockname()[:2])
    found = Registrar([address])
    found.update(registration("n1", 0))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await found.stop(timeout_s=0.05)
    silent.close()


async def test_a_registrar_that_was_never_used_can_be_stopped() -> None:
    await Registrar([NOBODY]).stop()
    await Registrar([]).stop()


async def test_registrars_of_a_group_settle_on_the_newest_master(tmp_path: Path) -> None:
    """A change of the master, as the brokers tell it: whoever speaks first."""

    def of(node: str, master: str, term: int) -> Registration:
        number = int(node[1])
        return registration(node, 0 if node == master else number, term=term, role_epoch=term)

    nodes = ("n1", "n2", "n3")
    async with name_server(tmp_path) as server:
        group = {node: Registrar([server.address]) for node in nodes}
        for term, master in enumerate(("n1", "n2", "n3", "n1"), 1):
            for node in nodes:
                group[node].update(of(node, master, term))
            expected = {node: 0 if node == master else int(node[1]) for node in nodes}
            await until(lambda expected=expected: ids(server) == expected)  # type: ignore[misc]
        for found in group.values():
            await found.stop()
        assert ids(server) == {}


class Session:
    """At a NameServer that takes all; `received` is called before each answer."""

    def __init__(self, received: Callable[[], None]) -> None:
        self.sent: list[Registration] = []
        self._received = received
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def register(self, given: Registration) -> RegistrationAnswer:
        self.sent.append(given)
        self._received()
        return RegistrationAnswer()

    def ended(self) -> asyncio.Future[None]:
        return self._ended

    async def finish(self) -> None: ...

    async def close(self) -> None: ...


async def test_what_is_updated_while_the_one_before_is_registered_follows_at_once() -> None:
    """And nothing is registered more often than that; until then the broker is not registered as it is."""
    first, second = registration("n1", 0), registration("n1", 1, role_epoch=2)
    shown: list[bool] = []

    def received() -> None:
        shown.append(clerk.status.registered)
        if len(session.sent) == 1:
            clerk.update(second)

    session = Session(received)
    clerk = _ServerRegistration("server", lambda _: cast(Any, session), 1_000.0, lambda: 7, lambda: 0.0)
    clerk.update(first)
    await until(lambda: clerk.status.registered)
    for _ in range(50):
        await asyncio.sleep(0)
    assert session.sent == [first, second] and shown == [False, False]
    await clerk.stop(1.0)
