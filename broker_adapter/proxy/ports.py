"""Ports for clients alone: in plain text, and with TLS that asks them for no certificate."""

from __future__ import annotations

import asyncio

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.proxy.front import MessagingService
from broker_adapter.proxy.messages.context import PLAIN_PORT, TLS_PORT
from dledger import Code, ConfigError, TlsFiles
from dledger.platform import GrpcHost, GrpcService, ServerTls, is_loopback


class ClientPorts:
    """`start` once, `stop` once. ConfigError if the files of TLS are no good, or plain text is refused."""

    def __init__(
        self,
        service: MessagingService,
        settings: ClientServiceSettings,
        node_files: TlsFiles | None,
        *,
        allow_plaintext: bool,
    ) -> None:
        """`node_files`: those of the node, which stand in for what `settings` do not name."""
        #: host:port as really bound, by kind of port (`proxy.context`).
        self.addresses: dict[str, str] = {}
        self._service = service
        self._wanted: list[tuple[str, str]] = []
        self._tls: ServerTls | None = None
        self._hosts: list[GrpcHost] = []
        if settings.listen:
            if not (allow_plaintext or is_loopback(settings.listen)):
                raise ConfigError(
                    f"rocketmq_v2.listen is {settings.listen}, beyond this machine, and would be in plain "
                    "text: use tls_listen, or say allow_plaintext = true if the network can be trusted",
                    code=Code.PLAINTEXT_REFUSED,
                )
            self._wanted.append((PLAIN_PORT, settings.listen))
        if settings.tls_listen:
            self._tls = ServerTls(_files(settings, node_files), client_auth=False)
            self._wanted.append((TLS_PORT, settings.tls_listen))

    async def start(self) -> None:
        """ConfigError (PORT_IN_USE); nothing is left behind then."""
        for kind, listen in self._wanted:
            credentials = self._tls.credentials() if self._tls and kind == TLS_PORT else None
            served = GrpcService(self._service.name, self._service.handler_at(kind))
            host = GrpcHost({}, others=[served], credentials=credentials)
            try:
                await host.start(listen)
            except BaseException:
                await self.stop()
                raise
            self._hosts.append(host)
            self.addresses[kind] = host.address

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no new calls; those under way have `grace_s` seconds to end."""
        hosts, self._hosts = self._hosts, []
        await asyncio.gather(*(host.stop(grace_s) for host in hosts))

    def look(self) -> None:
        """Take over changed certificates. Reads files: call it now and then, from one thread."""
        if self._tls is not None:
            self._tls.look()


def _files(settings: ClientServiceSettings, node_files: TlsFiles | None) -> TlsFiles:
    if settings.tls_certificate is not None:
        ca = settings.tls_ca or settings.tls_certificate
        return TlsFiles(ca, settings.tls_certificate, settings.tls_key)
    if node_files is None:
        text = "rocketmq_v2.tls_listen needs tls_certificate and tls_key, or a [tls] section of the node"
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    return node_files
