"""The port of a node for clients of the remoting protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.remoting.server import ChannelEvents, RemotingServer, ServerLimits
from dledger import Code, ConfigError, TlsFiles
from dledger.infra.transport.listener import TlsMode
from dledger.infra.transport.tls import ServerTls
from dledger.node.setup.config import is_loopback

#: RocketMQ's clients expect the VIP channel on the main port minus this number.
VIP_PORT_DISTANCE = 2


class SendOnly(NamedTuple):
    """The dispatch and events of the send-only port."""

    dispatch: Dispatch
    events: Sequence[ChannelEvents]


class RemotingPort:
    """The port. Call `start` and `stop` once each. Both do nothing if `settings` contain no address."""

    def __init__(
        self,
        settings: RemotingSettings,
        member_address: str,
        dispatch: Dispatch,
        node_files: TlsFiles | None,
        *,
        allow_plaintext: bool,
        certificates_decide: bool = False,
        events: Iterable[ChannelEvents] = (),
        send_only: SendOnly | None = None,
    ) -> None:
        """`member_address`: host:port of the node. Its host is advertised to clients. `certificates_decide`:
        client certificates determine who is an operator.

        Raises ConfigError if the TLS files are invalid or missing, or if the port would use plain text
        without permission.
        """
        self._settings = settings
        self._dispatch, self._send_only = dispatch, send_only
        #: host:port of the bound send-only port; "" without one.
        self.send_address = ""
        #: Supported request codes.
        self.codes = dispatch.codes
        self._host = member_address.rpartition(":")[0]
        self._advertised: tuple[str, str] | None = None
        self._tls: ServerTls | None = None
        self.server: RemotingServer | None = None
        if not settings.listen:
            return
        is_plain = node_files is None or settings.tls_mode == "permissive"
        listens = [one for one in (settings.listen, settings.vip_listen, settings.send_listen) if one]
        if is_plain and not (allow_plaintext or all(map(is_loopback, listens))):
            way = 'set tls_mode = "enforcing"' if node_files else "add a [tls] section to the node"
            raise ConfigError(
                f"remoting.listen is {settings.listen}, which is reachable from other machines in plain "
                f"text: {way}, or set allow_plaintext = true if the network is trusted",
                code=Code.PLAINTEXT_REFUSED,
            )
        if node_files is not None:
            is_required = settings.requires_certificates(certificates_decide=certificates_decide)
            self._tls = ServerTls(node_files, client_auth=is_required)
        elif settings.client_auth == "require":
            raise ConfigError(
                'remoting.client_auth = "require" needs a [tls] section in the configuration of the node'
            )

        self.server = RemotingServer(
            dispatch,
            limits=ServerLimits(settings.max_connections, settings.max_connections_per_address),
            tls=self._tls.remoting_context(asks=True) if self._tls else None,
            mode=TlsMode(settings.tls_mode) if self._tls else None,
            events=events,
        )

    @property
    def address(self) -> str:
        """Return the bound host:port, or "" if the protocol is disabled."""
        return self.server.address if self.server else ""

    def advertise(self, address: str, send_address: str) -> None:
        """Replace the advertised addresses (host:port) of the port and of its send-only port. "" withholds
        an address from routes."""
        self._advertised = (address, send_address)

    @property
    def advertised(self) -> str:
        """Return the host:port that is advertised to clients, or "" if the protocol is disabled."""
        if self._advertised is not None:
            return self._advertised[0]
        if not self.address:
            return ""
        return self._settings.advertise or f"{self._host}:{self.address.rpartition(':')[2]}"

    @property
    def send_advertised(self) -> str:
        """Return the host:port of the send-only port that is advertised to clients, or "" if there is
        none.
        """
        if self._advertised is not None:
            return self._advertised[1]
        if not self.send_address:
            return ""
        host = self.advertised.rpartition(":")[0]
        return self._settings.send_advertise or f"{host}:{self.send_address.rpartition(':')[2]}"

    @property
    def counts(self) -> Counter[tuple[int, int]]:
        """Return request counts by (request code, response code)."""
        return self._dispatch.counts + (self._send_only.dispatch.counts if self._send_only else Counter())

    async def start(self) -> None:
        """Start listening. Raises ConfigError (PORT_IN_USE)."""
        if self.server is None:
            return
        await self.server.start(self._settings.listen)
        vip_listen = self._settings.vip_listen
        if vip_listen:
            await self.server.listen_also(vip_listen)
        if self._send_only is None:
            return
        self.send_address = await self.server.listen_also(self._settings.send_only_listen, *self._send_only)
        if vip_listen:
            port = int(self.send_address.rpartition(":")[2]) - VIP_PORT_DISTANCE
            await self.server.listen_also(f"{vip_listen.rpartition(':')[0]}:{port}", *self._send_only)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop accepting requests.

        Requests in progress have `grace_s` seconds to finish. May be called again.
        """
        if self.server is not None:
            await self.server.stop(grace_s)

    def reload_changed_files(self) -> None:
        """Reload certificates that have changed.

        Call this method periodically, always on the same thread, because it reads files.
        """
        if self._tls is not None:
            self._tls.reload()
