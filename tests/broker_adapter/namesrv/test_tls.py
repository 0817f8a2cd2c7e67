"""TLS: of clients, brokers and the status page."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker_adapter.errors import NameServerRefused, NameServerUnavailable
from broker_adapter.namesrv.callers import Callers
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.config import load_config
from broker_adapter.namesrv.registration import Registrar
from dledger import AsyncClient, ConfigError, TlsFiles
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


async def test_a_client_of_the_log_names_the_server_that_it_met(world: TlsWorld, tmp_path: Path) -> None:
    tls = section(world.files("namesrv"))
    async with name_server(tmp_path / "data", tls=tls, http_listen="127.0.0.1:0") as server:
        page = str(server.http_address)
        async with AsyncClient([server.address, page], tls=world.files("n1"), session=False) as client:
            answers = await client.status()
        assert f"{server.address}: a NameServer listens there" in str(answers[server.address])
        assert f"{page}: an HTTP server, such as a status page, listens there" in str(answers[page])


@pytest.mark.parametrize("kind", ["plain text", "no certificate"])
async def test_without_a_certificate_nobody_gets_in(world: TlsWorld, tmp_path: Path, kind: str) -> None:
    tls = None if kind == "plain text" else TlsFiles(world.ca)
    async with (
        name_server(tmp_path / "data", tls=section(world.files("namesrv"))) as server,
        NameServerClient([server.address], tls) as client,
    ):
        with pytest.raises(NameServerUnavailable, match=server.address):
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
