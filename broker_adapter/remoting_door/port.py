"""The port of a node for clients of the remoting protocol."""

from __future__ import annotations

from collections.abc import Iterable

from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.remoting.server import ChannelEvents, RemotingServer, ServerLimits
from dledger import Code, ConfigError, TlsFiles
from dledger.platform import ServerTls, TlsMode, is_loopback


class RemotingPort:
    """`start` once, `stop` once; neither does anything if `settings` name no address."""

    def __init__(
        self,
        settings: RemotingSettings,
        member_address: str,
        dispatch: Dispatch,
        node_files: TlsFiles | None,
        *,
        allow_plaintext: bool,
        events: Iterable[ChannelEvents] = (),
    ) -> None:
        """`member_address`: host:port of the node, whose host clients are told. ConfigError if the files of
        TLS are no good, or plain text is refused."""
        self._settings = settings
        #: Requests by (code, code of the answer).
        self.counts = dispatch.counts
        #: Request codes that are answered.
        self.codes = dispatch.codes
        self._host = member_address.rpartition(":")[0]
        self._tls: ServerTls | None = None
        self.server: RemotingServer | None = None
        self._vip_server: RemotingServer | None = None
        if not settings.listen:
            return
        if not allow_plaintext and (beyond := [one for one in settings.namesrv if not is_loopback(one)]):
            raise ConfigError(
                f"remoting.namesrv: {beyond[0]} is beyond this machine, and registrations go in plain text: "
                "say allow_plaintext = true if the network can be trusted",
                code=Code.PLAINTEXT_REFUSED,
            )
        is_plain = node_files is None or settings.tls_mode == "permissive"
        listens = [one for one in (settings.listen, settings.vip_listen) if one]
        if is_plain and not (allow_plaintext or all(map(is_loopback, listens))):
            way = 'set tls_mode = "enforcing"' if node_files else "add a [tls] section to the node"
            raise ConfigError(
                f"remoting.listen is {settings.listen}, beyond this machine, and would be in plain text: "
                f"{way}, or say allow_plaintext = true if the network can be trusted",
                code=Code.PLAINTEXT_REFUSED,
            )
        if node_files is not None:
            self._tls = ServerTls(node_files, client_auth=False)

        def server() -> RemotingServer:
            return RemotingServer(
                dispatch,
                limits=ServerLimits(settings.max_connections, settings.max_connections_per_address),
                tls=self._tls.remoting_context(asks=True) if self._tls else None,
                mode=TlsMode(settings.tls_mode) if self._tls else None,
                events=events,
            )

        self.server = server()
        if settings.vip_listen:
            self._vip_server = server()

    @property
    def address(self) -> str:
        """host:port as really bound; "" if the protocol is not spoken."""
        return self.server.address if self.server else ""

    @property
    def advertised(self) -> str:
        """host:port that clients are told; "" if the protocol is not spoken."""
        if not self.address:
            return ""
        return self._settings.advertise or f"{self._host}:{self.address.rpartition(':')[2]}"

    async def start(self) -> None:
        """ConfigError (PORT_IN_USE)."""
        if self.server is not None:
            await self.server.start(self._settings.listen)
        if self._vip_server is not None:
            await self._vip_server.start(self._settings.vip_listen)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take nothing new; requests under way have `grace_s` seconds to end. Repeatable."""
        if self.server is not None:
            await self.server.stop(grace_s)
        if self._vip_server is not None:
            await self._vip_server.stop(grace_s)

    def look(self) -> None:
        """Take over changed certificates. Reads files: call it now and then, from one thread."""
        if self._tls is not None:
            self._tls.look()
