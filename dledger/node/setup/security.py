"""TLS of one node: credentials of its servers and channels, and reloading of certificate files."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import grpc

from dledger.infra.logs import get_logger
from dledger.infra.transport import tls
from dledger.infra.transport.channels import ChannelSecurity
from dledger.infra.transport.peer_names import AdminNames, PeerNames
from dledger.node.setup.config import NodeConfig

_log = get_logger("tls")


class NodeSecurity:
    """TLS state of a running node. Raises ConfigError if files are missing or invalid."""

    def __init__(self, config: NodeConfig, members: Mapping[str, str] | None = None) -> None:
        """`members`: those in force, by node id; by default those of the configuration."""
        section = config.tls
        assert section is not None
        self._config, self._section = config, section
        self._names = PeerNames(config.members if members is None else members, section.peer_names)
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
                "tls.client_auth is none: any client of this port can speak as a member of the cluster"
            )

    @property
    def is_mutual(self) -> bool:
        return self._section.client_auth == "require"

    @property
    def http_context(self) -> ssl.SSLContext | None:
        return self._http

    @property
    def peer_names(self) -> PeerNames | None:
        """Names required in members' certificates, or None if clients present no certificates."""
        return self._names if self.is_mutual else None

    @property
    def admin_names(self) -> AdminNames | None:
        """Names of administrators. None if clients present no certificates; then any client may use all
        commands.
        """
        return AdminNames(self._section.admin_names, self._names) if self.is_mutual else None

    def server_credentials(self) -> grpc.ServerCredentials:
        return tls.server_credentials(self._keeper, client_auth=self.is_mutual)

    def channel(self, node_id: str) -> ChannelSecurity:
        """Return the security of a new channel to a member, from the current files."""
        return tls.channel_security(self._keeper.material, server_name=self._names.server_name(node_id))

    def reload_files(self) -> None:
        """Reload changed files. May be called on any thread."""
        self._keeper.refresh()

    def check_reloaded(self) -> bool:
        """Return True once after each change, so that the caller recreates its channels. Call on the loop.

        gRPC's own port reloads by itself.
        """
        if self._keeper.generation == self._generation:
            return False
        self._generation = self._keeper.generation
        if self._http is not None:
            try:
                tls.renew_context(self._http, self._keeper.files)
            except (OSError, ssl.SSLError) as error:
                # The files have changed again since they were read; the next check uses the new version.
                _log.error("the status port keeps its old certificate", reason=str(error))
        return True
