"""The gRPC server of a node, with the services for the log, peers, administration, health and reflection."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from dledger.errors import ConfigError
from dledger.infra.transport.call_limit import CallLimit, HandlerList
from dledger.infra.transport.channels import new_server
from dledger.infra.transport.cluster_check import for_cluster
from dledger.infra.transport.first_messages import FirstMessages
from dledger.infra.transport.handlers import both_stream, server_stream, service, small_requests, unary
from dledger.infra.transport.host import GrpcService, bind
from dledger.infra.transport.peer_names import AdminNames, PeerNames
from dledger.rpc.admin_service import ADMIN_SERVICE, AdminService
from dledger.rpc.append_service import AppendService, small_append_of
from dledger.rpc.append_wire import parse_push
from dledger.rpc.peer_service import PeerService
from dledger.rpc.ports import AdminPort, LogPort, PeerPort
from dledger.rpc.read_service import ReadService
from dledger.v1 import admin_pb2, log_pb2, peer_pb2

LOG_SERVICE = "dledger.v1.LogService"
PEER_SERVICE = "dledger.v1.PeerService"
_SERVICES = (LOG_SERVICE, PEER_SERVICE, ADMIN_SERVICE)
_RESERVED_NAMES = frozenset({*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME})


def check_services(services: Sequence[GrpcService]) -> None:
    """Raise ConfigError if two services share a name, or one has the name of a service of the node itself."""
    names = [service.name for service in services]
    for name in names:
        if not name or name in _RESERVED_NAMES or names.count(name) > 1:
            raise ConfigError(f"gRPC service {name!r}: the name is empty or already in use")


def peer_handler(peers: PeerService) -> grpc.GenericRpcHandler:
    """Return the handler of all calls of the other members."""
    methods = {
        "Vote": unary(peers.vote, peer_pb2.VoteRequest),
        "Heartbeat": unary(peers.heartbeat, peer_pb2.HeartbeatRequest),
        "Push": both_stream(peers.push, peer_pb2.PushRequest, parse_push),
        "TakeLeadership": unary(peers.take_leadership, peer_pb2.TakeLeadershipRequest),
        "Position": unary(peers.position, peer_pb2.PositionRequest),
        "Fetch": server_stream(peers.fetch, peer_pb2.FetchRequest),
        "Image": unary(peers.image, peer_pb2.ImageRequest),
    }
    return service(PEER_SERVICE, methods)


class NodeGrpc:
    """The gRPC server of a node. `address` is host:port, with the port that was actually bound."""

    def __init__(
        self,
        log: LogPort,
        peers: PeerPort,
        admin: AdminPort,
        *,
        credentials: grpc.ServerCredentials | None = None,
        peer_names: PeerNames | None = None,
        admin_names: AdminNames | None = None,
        others: Sequence[GrpcService] = (),
        cluster_id: str = "",
    ) -> None:
        self._cluster_id = cluster_id
        # A separate limit for members: clients must not prevent a node from taking part in elections.
        self.first_messages, self.first_messages_of_members = (
            FirstMessages(lambda: log.limit_hit("first_messages")) for _ in range(2)
        )
        self.appends = AppendService(log, self.first_messages)
        self.reads = ReadService(log)
        self.address = ""
        self._serving = False
        self._others = tuple(others)
        self._credentials = credentials  # None: plain text
        self._peers = PeerService(peers, peer_names, log.limit_hit, self.first_messages_of_members)
        self._limits = log.limits
        self._calls = CallLimit(self._limits.max_calls, lambda: log.limit_hit("max_calls"))
        self._admin = AdminService(admin, admin_names, log.limit_hit)
        self._health = health.aio.HealthServicer()

    async def start(self, listen: str) -> None:
        """Bind and serve. Raises ConfigError PORT_IN_USE, which names the address, if the port is not
        available."""
        self._server = new_server(self._limits.max_connections)
        self._add_services()
        self.address = await bind(self._server, listen, self._credentials)
        await self._server.start()
        self._serving = True
        for name in ("", *_SERVICES, *self._other_names()):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, complete pending appends with Indeterminate, wait for other calls, and cancel the
        remaining ones after `grace_s` seconds. Idempotent."""
        if not self._serving:
            return
        self._serving = False
        self.appends.stop()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    def _other_names(self) -> list[str]:
        return [service.name for service in self._others]

    def _add_services(self) -> None:
        log = {
            "Append": unary(self.appends.append, log_pb2.AppendRequest, small_append_of),
            "AppendStream": both_stream(self.appends.append_stream, log_pb2.AppendRequest, small_append_of),
            "ReadStream": server_stream(self.reads.read_stream, log_pb2.ReadRequest),
            "ReadIndex": unary(self.reads.read_index, log_pb2.ReadIndexRequest),
        }
        admin = {
            "GetStatus": unary(self._admin.get_status, admin_pb2.GetStatusRequest),
            "TransferLeadership": unary(self._admin.transfer_leadership, admin_pb2.TransferLeadershipRequest),
            "ChangeMembers": unary(self._admin.change_members, admin_pb2.ChangeMembersRequest),
            "Purge": unary(self._admin.purge, admin_pb2.PurgeRequest),
            "Scrub": server_stream(self._admin.scrub, admin_pb2.ScrubRequest),
            "Backup": server_stream(self._admin.backup, admin_pb2.BackupRequest),
        }
        # A status names the cluster, so that clients of any cluster can find out.
        log = {name: for_cluster(method, self._cluster_id) for name, method in log.items()}
        of_cluster = admin.keys() - {"GetStatus"}
        admin |= {name: for_cluster(admin[name], self._cluster_id) for name in of_cluster}
        of_clients = HandlerList()
        of_clients.add_generic_rpc_handlers((service(LOG_SERVICE, log), service(ADMIN_SERVICE, admin)))
        of_clients.add_generic_rpc_handlers([other.handler for other in self._others])
        of_grpc = HandlerList()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, of_grpc)
        names = (*_SERVICES, *self._other_names(), health.SERVICE_NAME, reflection.SERVICE_NAME)
        described = reflection.aio.ReflectionServicer(names)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(described, of_grpc)
        of_clients.add_generic_rpc_handlers(map(small_requests, of_grpc.handlers))
        limited = self.first_messages.over(*map(self._calls.over, of_clients.handlers))
        of_members = self.first_messages_of_members.over(peer_handler(self._peers))
        self._server.add_generic_rpc_handlers((of_members, limited))
