"""Ports that serve only clients: one in plain text, and one with TLS but without client certificates."""

from __future__ import annotations

import asyncio

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.endpoints.context import PLAIN_PORT, TLS_PORT
from broker_adapter.endpoints.v5.front import MessagingService
from dledger import Code, ConfigError, TlsFiles
from dledger.infra.transport.host import GrpcHost, GrpcService
from dledger.infra.transport.tls import ServerTls
from dledger.node.setup.config import is_loopback


class ClientPorts:
    """The client ports. Call `start` and `stop` once each.

    The constructor raises ConfigError if the TLS files are invalid, or if a port would use plain text without
    permission.
    """

    def __init__(
        self,
        service: MessagingService,
        settings: ClientServiceSettings,
        node_files: TlsFiles | None,
        *,
        allow_plaintext: bool,
    ) -> None:
        """`node_files`: the TLS files of the node, used if `settings` specify none."""
        #: The bound host:port by kind of port (`endpoints.context`).
        self.addresses: dict[str, str] = {}
        self._service = service
        self._wanted: list[tuple[str, str]] = []
        self._tls: ServerTls | None = None
        self._hosts: list[GrpcHost] = []
        if settings.listen:
            if not (allow_plaintext or is_loopback(settings.listen)):
                raise ConfigError(
                    f"rocketmq_v2.listen is {settings.listen}, which is reachable from other machines in "
                    "plain text: use tls_listen, or set allow_plaintext = true if the network is trusted",
                    code=Code.PLAINTEXT_REFUSED,
                )
            self._wanted.append((PLAIN_PORT, settings.listen))
        if settings.tls_listen:
            self._tls = ServerTls(_files(settings, node_files), client_auth=False)
            self._wanted.append((TLS_PORT, settings.tls_listen))

    async def start(self) -> None:
        """Start listening. Raises ConfigError (PORT_IN_USE); all ports are then closed."""
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
        """Stop accepting calls. Calls in progress have `grace_s` seconds to finish."""
        hosts, self._hosts = self._hosts, []
        await asyncio.gather(*(host.stop(grace_s) for host in hosts))

    def reload_changed_files(self) -> None:
        """Reload certificates that have changed.

        Call this method periodically, always on the same thread, because it reads files.
        """
        if self._tls is not None:
            self._tls.reload()


def _files(settings: ClientServiceSettings, node_files: TlsFiles | None) -> TlsFiles:
    if settings.tls_certificate is not None:
        ca = settings.tls_ca or settings.tls_certificate
        return TlsFiles(ca, settings.tls_certificate, settings.tls_key)
    if node_files is None:
        text = "rocketmq_v2.tls_listen needs tls_certificate and tls_key, or a [tls] section of the node"
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    return node_files
