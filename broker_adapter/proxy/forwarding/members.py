"""Who may forward calls to this node: the other members of its log, known as they are to each other there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from broker_adapter.proxy.forwarding.frames import VERSION
from broker_adapter.v1 import forward_pb2 as pb
from dledger import Code, InvalidRequest, NodeConfig, TlsFiles
from dledger.platform import ChannelSecurity, ClientTls, PeerNames, load_secret


class Members:
    """As in the log itself, a member is known by its certificate and by the secret of the cluster; where
    there is neither, by its word."""

    def __init__(self, config: NodeConfig) -> None:
        """ConfigError if the files of TLS or the secret's are no good."""
        self._config = config
        secret_file = config.cluster_secret_file
        self._secret = None if secret_file is None else load_secret(secret_file)
        tls = config.tls
        self._names: PeerNames | None = None
        self._tls: ClientTls | None = None
        if tls is not None:
            self._names = PeerNames(config.members, tls.peer_names)
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
        """The node id of who speaks. InvalidRequest."""
        config = self._config
        if hello.version != VERSION:
            text = f"version {hello.version} of forwarding; this node speaks {VERSION}"
            raise InvalidRequest(text, code=Code.UNSUPPORTED_VERSION)
        if self._secret is not None and not self._secret.accepts(hello.secret):
            text = "no secret of the cluster: cluster_secret_file must hold the same on all nodes"
            raise InvalidRequest(text, code=Code.SECRET_REFUSED)
        if (hello.cluster_id, hello.group) != (config.cluster_id, config.group):
            text = f"cluster {hello.cluster_id!r}, group {hello.group!r}: this node is of another"
            raise InvalidRequest(text, code=Code.UNKNOWN_CLUSTER)
        if hello.node_id not in config.members or hello.node_id == config.node_id:
            text = f"{hello.node_id!r} is no other member of {sorted(config.members)}"
            raise InvalidRequest(text, code=Code.UNKNOWN_MEMBER)
        if hello.remote_id != config.node_id:
            text = f"calls for {hello.remote_id!r}; this node is {config.node_id!r}"
            raise InvalidRequest(text, code=Code.UNEXPECTED_MEMBER)
        if self._names is not None and self._checks:
            self._names.check(hello.node_id, auth_context)
        return hello.node_id

    def address(self, node_id: str) -> str:
        return self._config.peer_address(node_id)

    def security(self, node_id: str) -> ChannelSecurity | None:
        """Of a channel to a member, with the files of now. None: plain text."""
        if self._tls is None or self._names is None:
            return None
        return replace(self._tls(), server_name=self._names.server_name(node_id))
