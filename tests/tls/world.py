"""Nodes with TLS inside the test's own process, and certificates of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dledger.cli.local.certificates import Authority
from dledger.client import AsyncClient, TlsFiles
from dledger.node.server import NodeServer
from tests.node.local import GROUP, make_server, until
from tests.process.cluster import free_ports

NODES = ("n1", "n2", "n3")


class TlsWorld:
    """One CA, a folder of its certificates, and members that share the host 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = folder / "tls"
        self.authority = Authority()
        self.ca = self.authority.save(self.certificates)
        self.members = {node: f"127.0.0.1:{port}" for node, port in zip(NODES, free_ports(3), strict=True)}

    @property
    def addresses(self) -> list[str]:
        return list(self.members.values())

    def files(
        self,
        name: str,
        *,
        hosts: Sequence[str] | None = None,
        authority: Authority | None = None,
        seconds: float | None = None,
        folder: str = "",
    ) -> TlsFiles:
        """A new certificate called `name`; `seconds`: how long it is valid, below 0: it has expired."""
        ends = None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)
        begins = datetime.now(UTC) - timedelta(days=2)
        certificate, key = (authority or self.authority).issue(
            self.certificates / folder,
            name,
            hosts=(name, "127.0.0.1") if hosts is None else hosts,
            not_before=begins,
            not_after=ends,
        )
        return TlsFiles(self.ca, certificate, key)

    def client_files(self) -> TlsFiles:
        return self.files("app", hosts=())

    def section(self, files: TlsFiles, **more: Any) -> dict[str, Any]:
        return {"certificate": str(files.certificate), "key": str(files.key), "ca": str(files.ca), **more}

    def server(
        self,
        node: str,
        files: TlsFiles | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        **tls: Any,
    ) -> NodeServer:
        files = self.files(node) if files is None else files
        content = {"tls": self.section(files, **tls), **(settings or {})}
        return make_server(self.folder, node, self.members, content)

    def client(self, tls: TlsFiles | None, **options: Any) -> AsyncClient:
        return AsyncClient(self.addresses, group=GROUP, tls=tls, **{"timeout": 10.0, **options})


@asynccontextmanager
async def running(*servers: NodeServer) -> AsyncIterator[list[NodeServer]]:
    """Started, agreed about a leader; what is in the list at the end is stopped."""
    started: list[NodeServer] = []
    try:
        for server in servers:
            await server.start()
            started.append(server)
        await until(lambda: all(s.node_status().leader_id for s in servers))
        await until(lambda: len(terms(servers)) == 1)
        yield started
    finally:
        for server in started:
            await server.stop()


def terms(servers: Sequence[NodeServer]) -> set[int]:
    return {server.node_status().term for server in servers}
