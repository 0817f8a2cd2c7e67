"""Master and slave over TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from broker_adapter.log.classic.ha.options import Handshake
from dledger.infra.transport.listener import TlsMode
from dledger.infra.transport.tls import ClientTls, ServerTls
from tests.broker_adapter.ha.memory_log import MemoryLog
from tests.broker_adapter.ha.pair import QUICK, SECRET, following, master
from tests.node.local import until
from tests.tls.world import TlsWorld

WHOLE = replace(QUICK, whole_log=True)


async def test_a_slave_follows_over_tls_and_nobody_else(tmp_path: Path) -> None:
    world, log = TlsWorld(tmp_path), MemoryLog()
    log.fill(30)
    server = ServerTls(world.files("n1"), client_auth=True).remoting_context()
    mutual = ClientTls(world.files("n2")).stream_context
    stranger = ClientTls(TlsWorld(tmp_path / "other").files("n2")).stream_context
    async with master(log, tls=server, secret=SECRET) as service:
        copy = MemoryLog()
        async with following(
            copy,
            service.address,
            handshake=Handshake.REQUIRED,
            options=WHOLE,
            tls=mutual,
            secret=SECRET,
        ):
            await until(lambda: copy.data == log.data)
        tried: list[Callable[[], ssl.SSLContext] | None] = [stranger, None]
        for tls in tried:
            empty = MemoryLog()
            async with following(empty, service.address, options=WHOLE, tls=tls) as client:
                await until(lambda found=client: found.status().problem != "")
                assert not empty.data
        assert not service.status().slaves


async def test_a_port_may_take_both(tmp_path: Path) -> None:
    world, log = TlsWorld(tmp_path), MemoryLog()
    log.fill(30)
    server = ServerTls(world.files("n1"), client_auth=False).remoting_context()
    tried: list[Callable[[], ssl.SSLContext] | None] = [ClientTls(world.files("n2")).stream_context, None]
    async with master(log, tls=server, tls_mode=TlsMode.PERMISSIVE) as service:
        for tls in tried:
            copy = MemoryLog()
            async with following(copy, service.address, options=WHOLE, tls=tls):
                await until(lambda copied=copy: copied.data == log.data)
