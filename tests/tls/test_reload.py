"""Certificates change while everything runs: new connections use the new ones, nothing else happens."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
import time
from pathlib import Path

import pytest

from dledger.cli.local.certificates import Authority
from dledger.client import TlsFiles
from dledger.errors import ConfigError, NotLeader
from dledger.infra.transport import tls
from dledger.infra.transport.tls import TlsKeeper
from dledger.node.server import NodeServer
from tests.node.local import PATIENT, until
from tests.process.cluster import free_ports

from .world import NODES, TlsWorld, running, terms


def replace(old: TlsFiles, new: TlsFiles) -> None:
    """As a careful rotation does: each file at once."""
    for target, source in zip(old.paths()[1:], new.paths()[1:], strict=True):
        copy = Path(f"{target}.next")
        shutil.copyfile(source, copy)
        copy.replace(target)


def presented(address: str, client: TlsFiles) -> float:
    """When the certificate that a server shows ends."""
    context = ssl.create_default_context(cafile=str(client.ca))
    context.load_cert_chain(str(client.certificate), client.key)
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname=host) as connection,
    ):
        found = connection.getpeercert()
        assert found
        return ssl.cert_time_to_seconds(str(found["notAfter"]))


def link_is_up(server: NodeServer, to: str) -> bool:
    return any(f.node_id == to and f.connected for f in server.node_status().followers)


@pytest.mark.slow
async def test_an_old_certificate_expires_and_nobody_notices(
    world: TlsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    short = 20.0
    expiry = time.time() + short
    old = {node: world.files(node, seconds=short) for node in NODES}
    http = {
        node: {"http_listen": f"127.0.0.1:{port}", "timing": PATIENT}
        for node, port in zip(NODES, free_ports(3), strict=True)
    }
    made = [world.server(node, old[node], settings=http[node]) for node in NODES]
    app_old = world.files("app", hosts=(), seconds=short)
    async with running(*made) as servers, world.client(app_old, session=True) as client:
        await client.append(b"before")
        before = terms(servers)
        for node in NODES:
            replace(old[node], world.files(node, folder="new"))
        replace(app_old, world.files("app", hosts=(), folder="new"))
        await until(lambda: caplog.text.count("TLS files reloaded") >= len(NODES))
        await client.append(b"between")
        await until(lambda: time.time() > expiry + 1)
        await client.append(b"after")
        assert terms(servers) == before, "no election"
        for server in servers:
            for address in (server.address, server.config.http_listen):
                assert await asyncio.to_thread(presented, address, app_old) > expiry + 60
        # Clients of now and of then, and a node that comes back, all make new connections.
        async with world.client(world.files("late", hosts=())) as late:
            bodies = [entry.body async for entry in late.read()]
        assert bodies == [b"before", b"between", b"after"]
        follower = next(s for s in servers if not s.node_status().is_leader)
        node = follower.config.node_id
        servers.remove(follower)
        await follower.stop()
        back = world.server(node, old[node], settings=http[node])
        await back.start()
        servers.append(back)
        leader = next(s for s in servers if s.node_status().is_leader)
        await until(lambda: link_is_up(leader, node))
        # The client's own connection to it is gone; only its new certificate gets it another one.
        local = client.read(mode="local", server=back.address)
        assert [entry.body async for entry in local][:1] == [b"before"]
        result = await client.append(b"all")
        await until(lambda: back.node_status().committed_index >= result.index)
        assert terms(servers) == before


async def test_the_ca_changes_in_three_steps(world: TlsWorld, caplog: pytest.LogCaptureFixture) -> None:
    own_ca = {node: world.folder / f"ca-{node}.pem" for node in NODES}
    files = {}
    for node in NODES:
        shutil.copyfile(world.ca, own_ca[node])
        made = world.files(node)
        files[node] = TlsFiles(own_ca[node], made.certificate, made.key)
    new = Authority("new CA")

    async def taken_over() -> None:
        await until(lambda: caplog.text.count("TLS files reloaded") >= len(NODES))
        caplog.clear()

    async with running(
        *(world.server(node, files[node], settings={"timing": PATIENT}) for node in NODES)
    ) as servers:
        before = terms(servers)
        for ca in own_ca.values():
            ca.write_bytes(world.authority.pem + new.pem)
        await taken_over()
        for node in NODES:
            replace(files[node], world.files(node, authority=new, folder="new"))
        await taken_over()
        for ca in own_ca.values():
            ca.write_bytes(new.pem)
        await taken_over()
        trusted = world.files("app", hosts=(), authority=new)
        trusted = TlsFiles(new.save(world.folder / "new"), trusted.certificate, trusted.key)
        async with world.client(trusted) as client:
            assert (await client.append(b"x")).index >= 0
        # What the old CA signed is worth nothing now.
        async with world.client(replace_ca(world.files("old", hosts=()), trusted), timeout=1.0) as client:
            with pytest.raises(NotLeader, match="of a CA that the server does not trust"):
                await client.append(b"never")
        assert terms(servers) == before


def replace_ca(files: TlsFiles, other: TlsFiles) -> TlsFiles:
    return TlsFiles(other.ca, files.certificate, files.key)


async def test_bad_files_are_not_taken_and_said_so(world: TlsWorld, caplog: pytest.LogCaptureFixture) -> None:
    files = {node: world.files(node) for node in NODES}
    servers = [world.server(node, files[node]) for node in NODES]
    async with running(*servers), world.client(world.client_files()) as client:
        for node in NODES:
            replace(files[node], world.files(node, seconds=-60, folder="bad"))
        await until(lambda: caplog.text.count("NOT used") >= 3)
        assert "expired" in caplog.text
        await client.append(b"x")
        async with world.client(world.files("late", hosts=())) as late:
            assert [entry.body async for entry in late.read()] == [b"x"]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at whenever asked."""
    monkeypatch.setattr(tls, "LOOK_EVERY_S", 0.0)


@pytest.mark.usefixtures("eager")
def test_a_keeper_takes_what_is_good_and_keeps_what_it_had(
    world: TlsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    files = world.files("n1")
    keeper = TlsKeeper(files, "both")
    first = keeper.material
    assert not keeper.refresh() and keeper.generation == 1
    assert files.certificate is not None and files.key is not None
    certificate, key = Path(files.certificate), Path(files.key)

    good = certificate.read_bytes()
    for corrupt, words in (
        (b"", "not a matching pair of certificate and key"),
        (
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "not a matching pair of certificate and key",
        ),
        (Path(str(world.files("other").certificate)).read_bytes(), "key values mismatch"),
    ):
        caplog.clear()
        certificate.write_bytes(corrupt)
        for _ in range(3):
            assert not keeper.refresh() and keeper.material is first
        assert caplog.text.count("NOT used") == 1 and words in caplog.text
    key.rename(f"{key}.away")
    certificate.write_bytes(good)
    caplog.clear()
    assert not keeper.refresh()
    assert f"cannot read {key}" in caplog.text
    Path(f"{key}.away").rename(key)

    replace(files, world.files("n1", folder="new"))
    assert keeper.refresh() and keeper.generation == 2
    assert keeper.material.certificate == certificate.read_bytes() != good
    assert not keeper.refresh()


@pytest.mark.usefixtures("eager")
def test_a_certificate_that_is_not_valid_yet_is_taken_when_it_is(
    world: TlsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = world.files("n1")
    keeper = TlsKeeper(files, "both")
    load, refused = tls.load, True

    def not_yet(files: TlsFiles, use: tls.Use) -> tls.Material:
        if refused:
            raise ConfigError("certificate is not yet valid")
        return load(files, use)

    monkeypatch.setattr(tls, "load", not_yet)
    replace(files, world.files("n1", folder="new"))
    assert not keeper.refresh()
    refused = False
    assert keeper.refresh()


@pytest.mark.usefixtures("eager")
def test_an_expiring_certificate_is_announced(world: TlsWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    keeper = TlsKeeper(world.files("n1", seconds=3600), "both")
    keeper.refresh()
    keeper.refresh()
    assert caplog.text.count("valid until") == 1
