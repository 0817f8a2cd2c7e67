"""The nodes that may forward calls to this one: the other members of its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from broker_adapter.endpoints.forwarding.frames import VERSION
from broker_adapter.v1 import forward_pb2 as pb
from dledger import Code, InvalidRequest, NodeConfig, TlsFiles
from dledger.infra.transport.channels import ChannelSecurity
from dledger.infra.transport.peer_names import PeerNames
from dledger.infra.transport.tls import ClientTls
from dledger.node.setup.member_book import MemberBook
from dledger.node.setup.secret_file import load_secret


class Members:
    """Authenticates members like the log does: by certificate and cluster secret, if these are configured."""

    def __init__(self, config: NodeConfig, members: MemberBook | None = None) -> None:
        """`members`: those in force; by default, those of the configuration.

        Raises ConfigError if the TLS files or the secret file are invalid."""
        self._config = config
        self._members = members or MemberBook(config.members, config.peer_addresses)
        secret_file = config.cluster_secret_file
        self._secret = None if secret_file is None else load_secret(secret_file)
        tls = config.tls
        self._names: PeerNames | None = None
        self._tls: ClientTls | None = None
        if tls is not None:
            self._names = PeerNames(self._members, tls.peer_names)
            is_mutual = tls.client_auth == "require"
            self._checks = is_mutual
            files = TlsFiles(tls.ca, tls.certificate, tls.key) if is_mutual else TlsFiles(tls.ca)
            self._tls = ClientTls(files)

    def hello(self, remote_id: str) -> pb.ForwardHello:
        config = self._config
        return pb.ForwardHello(
            version=VERSION,
            cluster_id=config.cluster_id,
            group=config.group,
            node_id=config.node_id,
            remote_id=remote_id,
            tells_passed_on=True,
            secret=b"" if self._secret is None else self._secret.sent,
        )

    def check(self, hello: pb.ForwardHello, auth_context: Mapping[str, Iterable[bytes]]) -> str:
        """Check a hello and return the sender's node id. Raises InvalidRequest."""
        config = self._config
        if hello.version != VERSION:
            text = f"forwarding version {hello.version} is not supported; this node uses {VERSION}"
            raise InvalidRequest(text, code=Code.UNSUPPORTED_VERSION)
        if self._secret is not None and not self._secret.accepts(hello.secret):
            text = "wrong cluster secret: cluster_secret_file must have the same content on all nodes"
            raise InvalidRequest(text, code=Code.SECRET_REFUSED)
        if (hello.cluster_id, hello.group) != (config.cluster_id, config.group):
            text = f"cluster {hello.cluster_id!r}, group {hello.group!r}: this node belongs to another"
            raise InvalidRequest(text, code=Code.UNKNOWN_CLUSTER)
        if hello.node_id not in self._members or hello.node_id == config.node_id:
            text = f"{hello.node_id!r} is not another member of {sorted(self._members)}"
            raise InvalidRequest(text, code=Code.UNKNOWN_MEMBER)
        if hello.remote_id != config.node_id:
            text = f"calls are addressed to {hello.remote_id!r}, but this node is {config.node_id!r}"
            raise InvalidRequest(text, code=Code.UNEXPECTED_MEMBER)
        if self._names is not None and self._checks:
            self._names.check(hello.node_id, auth_context)
        return hello.node_id

    def address(self, node_id: str) -> str:
        return self._members.peer_address(node_id)

    def security(self, node_id: str) -> ChannelSecurity | None:
        """Return the current TLS settings for a channel to a member, or None for plain text."""
        if self._tls is None or self._names is None:
            return None
        return replace(self._tls(), server_name=self._names.server_name(node_id))
