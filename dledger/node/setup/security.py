"""TLS of one node: what its servers and its channels use, and the taking over of new files."""

from __future__ import annotations

import ssl

import grpc

from dledger.logs import get_logger
from dledger.node.setup.config import NodeConfig
from dledger.rpc.peer_names import AdminNames, PeerNames
from dledger.rpc.transport import tls
from dledger.rpc.transport.channels import ChannelSecurity

_log = get_logger("tls")


class NodeSecurity:
    """ConfigError if the files are missing or no good. Made once per start; `taken_over` on the loop."""

    def __init__(self, config: NodeConfig) -> None:
        section = config.tls
        assert section is not None
        self._config, self._section = config, section
        self._names = PeerNames(config.members, section.peer_names)
        self._keeper = tls.TlsKeeper(
            tls.TlsFiles(section.ca, section.certificate, section.key),
            "both" if self.is_mutual else "server",
        )
        self._generation = self._keeper.generation
        self._http = (
            tls.http_context(self._keeper, client_auth=section.http_client_auth == "require")
            if config.http_listen and config.has_http_tls
            else None
        )
        if not self.is_mutual and len(config.members) > 1 and config.cluster_secret_file is None:
            _log.warning(
                "tls.client_auth is none: whoever reaches this port can speak as a member of the cluster"
            )

    @property
    def is_mutual(self) -> bool:
        return self._section.client_auth == "require"

    @property
    def http_context(self) -> ssl.SSLContext | None:
        return self._http

    @property
    def peer_names(self) -> PeerNames | None:
        """None: nobody shows a certificate, so there is nothing to compare."""
        return self._names if self.is_mutual else None

    @property
    def admin_names(self) -> AdminNames | None:
        """None: nobody shows a certificate, so whoever gets so far may ask for everything."""
        return AdminNames(self._section.admin_names, self._names) if self.is_mutual else None

    def server_credentials(self) -> grpc.ServerCredentials:
        return tls.server_credentials(self._keeper, client_auth=self.is_mutual)

    def channel(self, node_id: str) -> ChannelSecurity:
        """For a channel to a member, with the files of now."""
        return tls.channel_security(self._keeper.material, server_name=self._names.server_name(node_id))

    def look(self) -> None:
        """Read changed files; on any thread."""
        self._keeper.refresh()

    def taken_over(self) -> bool:
        """True once after each change: channels are to be made anew. gRPC's own port needs no help."""
        if self._keeper.generation == self._generation:
            return False
        self._generation = self._keeper.generation
        if self._http is not None:
            try:
                tls.renew_context(self._http, self._keeper.files)
            except (OSError, ssl.SSLError) as error:
                # Changed once more since they were read; the next look takes that over.
                _log.error("the status port keeps its old certificate", reason=str(error))
        return True
