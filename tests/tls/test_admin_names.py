"""Whose certificates may tell a node what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dledger.client import TlsFiles
from dledger.errors import Code, ConfigError, DLedgerError
from dledger.infra.transport.tls import channel_security, load
from dledger.node.setup.config import parse_config
from dledger.rpc.log_client import LogClient
from tests.node.local import GROUP

from .world import NODES, TlsWorld, running


async def drain(parts: Any) -> None:
    async for _ in parts:
        pass


CALLS: dict[str, Callable[[LogClient], Awaitable[Any]]] = {
    "transfer": lambda client: client.transfer_leadership("nobody", 2.0),
    "purge": lambda client: client.purge(1, 0, 2.0),
    "scrub": lambda client: drain(client.scrub(0)),
    "backup": lambda client: drain(client.backup()),
}


async def answers(world: TlsWorld, files: TlsFiles, address: str) -> dict[str, Code]:
    """What each call comes to; the ones that change something do so on no member."""
    client = LogClient(address, GROUP, channel_security(load(files, "client")))
    found = {}
    for name, call in CALLS.items():
        try:
            await call(client)
            found[name] = Code.SUCCESS
        except DLedgerError as error:
            found[name] = error.code
    assert (await client.get_status(2.0)).group == GROUP, "everybody may ask how a node is"
    await client.close()
    return found


@pytest.mark.parametrize("who", ["ops", "n2", "app"])
async def test_only_operators_and_members_may_ask_for_changes(world: TlsWorld, who: str) -> None:
    nodes = [world.server(node, admin_names=["Ops", "backup.example"]) for node in NODES]
    files = world.files(who, hosts=None if who in NODES else ())
    async with running(*nodes) as servers:
        found = await answers(world, files, servers[0].address)
        refused = {name for name, code in found.items() if code is Code.CERTIFICATE_REFUSED}
        assert refused == (set(CALLS) if who == "app" else set())
        async with world.client(files) as client:  # appending and reading is for all
            await client.append(b"x")
            assert [entry.body async for entry in client.read()] == [b"x"]


async def test_without_names_only_members_may(world: TlsWorld) -> None:
    async with running(*map(world.server, NODES)) as servers:
        found = await answers(world, world.client_files(), servers[0].address)
        assert set(found.values()) == {Code.CERTIFICATE_REFUSED}
        found = await answers(world, world.files("n2"), servers[0].address)
        assert Code.CERTIFICATE_REFUSED not in found.values()


def test_names_need_certificates() -> None:
    content: dict[str, Any] = {
        "directory": "/d",
        "node_id": "n1",
        "cluster_id": "c",
        "members": {"n1": "127.0.0.1:1"},
        "tls": {"certificate": "a", "key": "b", "ca": "c", "admin_names": ["ops"]},
    }
    config = parse_config(content)
    assert config.tls is not None and config.tls.admin_names == ("ops",)
    content["tls"]["client_auth"] = "none"
    with pytest.raises(ConfigError, match="admin_names requires client_auth"):
        parse_config(content)
