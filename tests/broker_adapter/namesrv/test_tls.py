"""TLS: of clients, brokers and the status page."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker_adapter.errors import NameServerRefused, NameServerUnavailable, Status
from broker_adapter.namesrv.callers import Callers
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.config import load_config
from broker_adapter.namesrv.registration import Registrar
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.tables import RouteTables
from dledger import ConfigError, TlsFiles
from tests.broker_adapter.namesrv.helpers import name_server, registration, until
from tests.tls.world import TlsWorld


@pytest.fixture
def world(tmp_path: Path) -> TlsWorld:
    return TlsWorld(tmp_path)


def section(files: TlsFiles, **more: Any) -> dict[str, Any]:
    return {"certificate": str(files.certificate), "key": str(files.key), "ca": str(files.ca), **more}


async def test_with_certificates_brokers_register_and_clients_ask(world: TlsWorld, tmp_path: Path) -> None:
    tls = section(world.files("namesrv"), broker_names=["n1"])
    async with name_server(tmp_path / "data", tls=tls, http_listen="127.0.0.1:0") as server:
        own = world.files("n1")
        registrar = Registrar([server.address], own)
        registrar.update(registration("n1", 0))
        await until(lambda: registrar.status()[server.address].registered)
        async with NameServerClient([server.address], own) as client:
            assert (await client.route("orders")).queues
        context = ssl.create_default_context(cafile=str(world.ca))
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"https://{server.http_address}/livez", ssl=context) as response,
        ):
            assert response.status == 200
        await registrar.stop()


@pytest.mark.parametrize("who", ["client", "n2"])
async def test_nobody_stays_registered_in_the_name_of_another(
    world: TlsWorld, tmp_path: Path, who: str
) -> None:
    tls = section(world.files("namesrv"), broker_names=["n1", "n2"])
    async with name_server(tmp_path / "data", tls=tls) as server:
        registrar = Registrar([server.address], world.files(who, hosts=(who,)))
        registrar.update(registration("n1", 0))
        await until(lambda: registrar.status()[server.address].failures > 0)
        assert "may not register n1" in registrar.status()[server.address].last_error
        assert not server.name_server.brokers()
        await registrar.stop()


@pytest.mark.parametrize("kind", ["plain text", "no certificate"])
async def test_without_a_certificate_nobody_gets_in(world: TlsWorld, tmp_path: Path, kind: str) -> None:
    tls = None if kind == "plain text" else TlsFiles(world.ca)
    async with (
        name_server(tmp_path / "data", tls=section(world.files("namesrv"))) as server,
        NameServerClient([server.address], tls) as client,
    ):
        with pytest.raises(NameServerUnavailable, match="hung up"):
            await client.list_topics()


async def test_one_sided_tls_asks_for_no_certificate(world: TlsWorld, tmp_path: Path) -> None:
    tls = section(world.files("namesrv"), client_auth="none")
    async with (
        name_server(tmp_path / "data", tls=tls) as server,
        NameServerClient([server.address], TlsFiles(world.ca)) as client,
    ):
        assert await client.list_topics() == []


async def test_files_that_are_no_good_stop_the_start(world: TlsWorld, tmp_path: Path) -> None:
    tls = section(world.files("namesrv", seconds=-10))
    with pytest.raises(ConfigError, match="expired"):
        async with name_server(tmp_path / "data", tls=tls):
            raise AssertionError("it has started")


FORGED = 2**62


async def refused(call: Awaitable[object]) -> Status | None:
    try:
        await call
    except NameServerRefused as error:
        return error.status
    return None


CHANGES: dict[str, Callable[[NameServerClient], Awaitable[object]]] = {
    "register as itself": lambda c: c.register(registration("app", 0, term=FORGED)),
    "register another": lambda c: c.register(registration("n1", 0, term=6, role_epoch=9)),
    "un-register": lambda c: c.unregister("broker-a", "n1"),
    "wipe": lambda c: c.wipe_write_permission("broker-a"),
    "put": lambda c: c.kv_put("space", "key", "value"),
    "delete": lambda c: c.kv_delete("space", "key"),
}


async def outcomes(server: NameServerProcess, files: TlsFiles) -> dict[str, Status | None]:
    """What each change comes to for who holds these files, with n1 registered before it."""
    found = {}
    for name, change in CHANGES.items():
        server.name_server.tables = RouteTables()
        server.name_server.register(registration("n1", 0, term=5))
        server.name_server.kv.put("space", "key", "before")
        async with NameServerClient([server.address], files) as client:
            found[name] = await refused(change(client))
            if found[name] is not None:
                assert (await client.route("orders")).queues, "everybody may ask"
    return found


@pytest.mark.parametrize("names", [{}, {"broker_names": ["n1", "n2"], "admin_names": ["Ops"]}])
async def test_a_client_changes_nothing(world: TlsWorld, tmp_path: Path, names: dict[str, Any]) -> None:
    """A forged master of an absurd term would keep the real one out for ever."""
    tls = section(world.files("namesrv"), **names)
    async with name_server(tmp_path / "data", tls=tls) as server:
        found = await outcomes(server, world.client_files())
        assert set(found.values()) == {Status.NAMESRV_NOT_ALLOWED}
        assert server.name_server.tables.route("orders").master_terms == {"broker-a": 5}
        assert server.name_server.kv.get("space", "key") == "before"


async def test_operators_change_settings_and_brokers_speak_for_themselves(
    world: TlsWorld, tmp_path: Path
) -> None:
    tls = section(world.files("namesrv"), broker_names=["n1", "n2"], admin_names=["Ops"])
    async with name_server(tmp_path / "data", tls=tls) as server:
        no = Status.NAMESRV_NOT_ALLOWED
        allowed = {"un-register", "wipe", "put", "delete"}
        found = await outcomes(server, world.files("ops", hosts=()))
        assert found == {name: None if name in allowed else no for name in CHANGES}
        found = await outcomes(server, world.files("n2", hosts=("n2",)))
        allowed = {"wipe", "put", "delete"}
        assert found == {name: None if name in allowed else no for name in CHANGES}
        found = await outcomes(server, world.files("n1", hosts=("n1",)))
        assert found == {name: no if name == "register as itself" else None for name in CHANGES}


@pytest.mark.parametrize("names", [("n9",), ("n2",), ("n2", "client"), ()])
def test_a_name_of_a_node_alone_makes_no_broker_and_no_broker_is_another(names: tuple[str, ...]) -> None:
    """Names of nodes are public, and an authority may give them to anybody: brokers are named here."""
    callers = Callers(broker_names=["n1", "n2"], admin_names=["ops"])
    shown = {"x509_subject_alternative_name": [name.encode() for name in names]}
    for node_id in ("n1", "n9"):
        with pytest.raises(NameServerRefused):
            callers.check_unregister(shown, node_id)
        with pytest.raises(NameServerRefused):
            callers.check_register(shown, node_id, f"{node_id}:7000")


def test_names_need_certificates(tmp_path: Path) -> None:
    tls = {"certificate": "a", "key": "b", "ca": "c", "client_auth": "none", "broker_names": ["n1"]}
    with pytest.raises(ConfigError, match="client_auth"):
        load_config(None, {"directory": "d", "tls": tls})
