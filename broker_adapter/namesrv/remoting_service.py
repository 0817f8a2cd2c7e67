"""Request processors of the NameServer in RocketMQ's remoting protocol.

A broker of this project sends its node id, term, role_epoch and HTTP address in fields that other NameServers
ignore. RocketMQ's brokers are identified by their address. Their only term is the stateVersion of the
controller, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from broker_adapter.api import PERM_WRITE
from broker_adapter.errors import BrokerError, ResponseCode, TopicRefused
from broker_adapter.namesrv import remoting_bodies as bodies
from broker_adapter.namesrv.callers import Callers
from broker_adapter.namesrv.name_server import NameServer
from broker_adapter.namesrv.tables import NodeKey
from broker_adapter.namesrv.values import (
    ANY_EPOCH,
    NO_TERM,
    ClusterInfo,
    PublishedRoute,
    Registration,
    invalid,
)
from broker_adapter.namesrv.watching import RouteNotices
from broker_adapter.remoting.codes import DETAILS, MASTER_TERM, WATCH_ROUTE, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.remoting.json_bodies import dump
from broker_adapter.wire.broker_ids import MASTER_ID
from broker_adapter.wire.longs import long_of
from dledger.infra.loops.turns import LARGE_BYTES, large_turns
from dledger.infra.quotas import client_address

#: The namespace with the number of ordered queues of each ordered topic.
ORDER_TOPICS = "ORDER_TOPIC_CONFIG"

_Answer: TypeAlias = RemotingCommand
_Fields: TypeAlias = Mapping[str, str]
#: Minimum number of topics for which a list is encoded and sent in its own step of the event loop.
_MANY_TOPICS = 256
_MANY_ROWS = 256
#: Maximum number of topics in one notice.
_NOTICE_TOPICS = 1024


class NameServerRemoting:
    """The request processors.

    Implements ChannelEvents, in order to end registrations when their connections close.
    """

    def __init__(
        self,
        server: NameServer,
        info: Callable[[], ClusterInfo],
        settings: Callable[[], Mapping[str, str]],
        callers: Callers | None = None,
        *,
        single: bool = False,
    ) -> None:
        """`info`, `settings`: state and settings of this NameServer for display.

        `callers`: None if callers present no certificate. `single`: routes contain no write-only names.
        """
        self._single = single
        self._server = server
        self._info = info
        self._settings = settings
        self._callers = callers
        self._sessions: dict[RemotingConnection, dict[NodeKey, int]] = {}
        self._versions: dict[NodeKey, bodies.DataVersion] = {}
        self._notices: dict[RemotingConnection, RouteNotices] = {}

    def register_with(self, dispatch: Dispatch) -> None:
        """Register the processors. Each kind of request has its own executor."""
        server = self._server
        for executor, processors in (
            (
                server.routes,
                {
                    RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                    RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
                    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
                    RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
                    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
                },
            ),
            (
                server.registrations,
                {
                    RequestCode.REGISTER_BROKER: self._register,
                    RequestCode.UNREGISTER_BROKER: self._unregister,
                    RequestCode.QUERY_DATA_VERSION: self._query_data_version,
                    RequestCode.BROKER_HEARTBEAT: self._heartbeat,
                },
            ),
            (
                server.config,
                {
                    RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
                    RequestCode.ADD_WRITE_PERM_OF_BROKER: self._give_back,
                    RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
                    RequestCode.PUT_KV_CONFIG: self._kv_put,
                    RequestCode.GET_KV_CONFIG: self._kv_get,
                    RequestCode.DELETE_KV_CONFIG: self._kv_delete,
                    RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_list,
                    RequestCode.GET_NAMESRV_CONFIG: self._config,
                },
            ),
        ):
            for code, processor in processors.items():
                dispatch.register([code], processor, executor)

    # -- channel events -----------------------------------------------------------------------------------

    def channel_connected(self, connection: RemotingConnection) -> None:
        """Do nothing, because a new connection has not registered anything yet."""

    def channel_closed(self, connection: RemotingConnection, reason: str) -> None:
        for key, session in self._sessions.pop(connection, {}).items():
            self._server.close_session(session, key)
            if self._server.entry(key) is None:
                self._versions.pop(key, None)
        if (notices := self._notices.pop(connection, None)) is not None:
            self._server.watchers.remove(notices)

    # -- brokers ------------------------------------------------------------------------------------------

    async def _register(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        fields = request.fields
        self._check_register(connection, fields)  # check before the body is decoded, which is expensive
        body = bodies.register_body(
            request.body,
            compressed=fields.get("compressed") == "true",
            crc32=_number(fields, "bodyCrc32", 0),
            max_topics=self._server.tables.limits.max_topics,
        )
        given = _registration(fields, body)
        key = (given.broker_name, given.node_id)
        sessions = self._sessions.setdefault(connection, {})
        origin = client_address(connection.host)
        if key not in sessions:
            sessions[key] = self._server.open_session(origin)
        try:
            answer = self._server.register(given, sessions[key], origin)
        except BrokerError:
            self._forget_unused_session(connection, key)
            raise
        self._versions[key] = body.version
        found = {}
        # A master does not need the address of a master.
        if given.broker_id != MASTER_ID and answer.master_address:
            found = {"masterAddr": answer.master_address, "haServerAddr": answer.master_ha_address}
        return request.answer(
            ResponseCode.SUCCESS,
            fields=found | self._published_master(fields),
            body=bodies.key_values(self._server.kv.list(ORDER_TOPICS)),
        )

    def _published_master(self, fields: _Fields) -> dict[str, str]:
        """Return the fields by which a node of this project recognizes this NameServer.

        The response to RocketMQ's brokers does not contain them.
        """
        if "nodeId" not in fields:
            return {}
        answer = self._server.tables.registration_answer(_text(fields, "brokerName"))
        return {MASTER_TERM: str(answer.master_term), "masterAddr": answer.master_address}

    def close_expired(self, keys: Collection[NodeKey]) -> None:
        """Close the connections of nodes whose registrations have expired, as RocketMQ does.

        A node that was paused then registers as soon as it resumes, instead of at its next interval.
        """
        for connection, sessions in list(self._sessions.items()):
            if not sessions.keys().isdisjoint(keys):
                connection.close("a registration over this connection has expired")

    def _forget_unused_session(self, connection: RemotingConnection, key: NodeKey) -> None:
        """Close a session that has no registration, so that refused requests do not use up all sessions."""
        if self._server.entry(key) is None:
            self._server.close_session(self._sessions[connection].pop(key), None)

    async def _unregister(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        """Unregister a broker. As in RocketMQ, the request succeeds if the broker is unknown."""
        fields = request.fields
        name, node_id = _text(fields, "brokerName"), _node_id(fields)
        if self._callers is not None:
            self._callers.check_unregister(connection.auth_context, node_id)
        if self._server.entry((name, node_id)) is not None:
            self._server.unregister(name, node_id, _number(fields, "roleEpoch", ANY_EPOCH))
        return request.answer(ResponseCode.SUCCESS)

    async def _query_data_version(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        """Report whether the broker has to register again. If not, renew its registration."""
        fields = request.fields
        key = (_text(fields, "brokerName"), _node_id(fields))
        self._check_register(connection, fields)
        asked = bodies.data_version(request.body)
        known = self._versions.get(key) if self._server.entry(key) is not None else None
        changed = known != asked
        if not changed:
            self._server.renew(*key)
        return request.answer(
            ResponseCode.SUCCESS,
            fields={"changed": "true" if changed else "false"} | self._published_master(fields),
            body=dump((known or bodies.DataVersion()).to_json()),
        )

    async def _heartbeat(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        fields = request.fields
        self._check_register(connection, fields)
        self._server.renew(_text(fields, "brokerName"), _node_id(fields))
        return request.answer(ResponseCode.SUCCESS)

    async def _cluster_info(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        send_names = {} if self._single else self._server.tables.send_names()
        info = self._info() if request.fields.get(DETAILS) == "true" else None
        body = bodies.cluster_info(self._server.brokers(), send_names, info)
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def _wipe(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        return self._change_permission(connection, request, give_back=False)

    async def _give_back(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        return self._change_permission(connection, request, give_back=True)

    def _change_permission(
        self, connection: RemotingConnection, request: RemotingCommand, *, give_back: bool
    ) -> RemotingCommand:
        self._check_change(connection, "change permissions of a broker")
        name = _text(request.fields, "brokerName")
        count = self._server.wipe_write_permission(name, give_back=give_back)
        field = "addTopicCount" if give_back else "wipeTopicCount"
        return request.answer(ResponseCode.SUCCESS, fields={field: str(count)})

    # -- routes -------------------------------------------------------------------------------------------

    async def _route(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        topic = _text(request.fields, "topic")
        try:
            route = self._server.route(topic)
        except TopicRefused:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        is_watched = request.fields.get(WATCH_ROUTE) == "true" and self._watch(connection, topic)
        return request.answer(
            ResponseCode.SUCCESS,
            fields={WATCH_ROUTE: "true"} if is_watched else None,
            body=bodies.route_data(
                route,
                self._order_of(route),
                single=self._single,
                terms=request.fields.get(DETAILS) == "true",
            ),
        )

    def _watch(self, connection: RemotingConnection, topic: str) -> bool:
        """Watch the topic. Call this in the event-loop step that reads the route, so that no change is
        missed.

        A topic without a route is not watched, so that clients cannot store arbitrary names in this process.
        """
        notices = self._notices.get(connection)
        if notices is None:
            on_change = partial(_notify_changes, connection)
            notices = self._server.notify(on_change, client_address(connection.host))
            if notices is None:
                return False
            self._notices[connection] = notices
        return notices.watch(topic)

    def _order_of(self, route: PublishedRoute) -> str | None:
        """Return the order config of a topic, which is the operator's setting or, for a topic with ordered
        messages, the number of its write queues on each broker. None if there is neither.
        """
        configured = self._server.kv.list(ORDER_TOPICS).get(route.topic)
        if configured is not None:
            return configured
        ordered = [
            f"{name}:{config.write_queues}"
            for name, config in route.queues.items()
            if config.order and config.perm & PERM_WRITE
        ]
        return ";".join(ordered) or None

    async def _topics(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        await self._yield_for_topics(connection)
        return request.answer(ResponseCode.SUCCESS, body=bodies.topic_list(self._server.tables.topics()))

    async def _topics_of_cluster(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        await self._yield_for_topics(connection)
        cluster, tables = _text(request.fields, "cluster"), self._server.tables
        names = tables.cluster_addr_table.get(cluster, set())
        topics = [topic for topic in tables.topics() if not names.isdisjoint(tables.topic_queue_table[topic])]
        return request.answer(ResponseCode.SUCCESS, body=bodies.topic_list(topics))

    async def _yield_for_topics(self, connection: RemotingConnection) -> None:
        if len(self._server.tables.topic_queue_table) >= _MANY_TOPICS:
            await large_turns().turn(client_address(connection.host))

    async def _system_topics(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        """Return the names of clusters and brokers, which count as system topics, and the address of one
        broker.
        """
        clusters = self._server.tables.cluster_addr_table
        names = sorted({*clusters, *(name for names in clusters.values() for name in names)})
        address = next((entry.address for entry in self._server.brokers() if entry.broker_id >= 0), "")
        return request.answer(ResponseCode.SUCCESS, body=bodies.topic_list(names, address))

    async def _delete_topic(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        self._check_change(connection, "delete a topic's route")
        self._server.drop_topic(_text(request.fields, "topic"))
        return request.answer(ResponseCode.SUCCESS)

    # -- settings -----------------------------------------------------------------------------------------

    async def _kv_put(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        self._check_change(connection, "change settings")
        fields = request.fields
        await self._server.kv_put(*(_text(fields, name) for name in ("namespace", "key", "value")))
        return request.answer(ResponseCode.SUCCESS)

    async def _kv_get(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        fields = request.fields
        value = self._server.kv.get(_text(fields, "namespace"), _text(fields, "key"))
        return request.answer(ResponseCode.SUCCESS, fields={"value": value})

    async def _kv_delete(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        """Delete a setting. As in RocketMQ, the request succeeds if the setting does not exist."""
        self._check_change(connection, "change settings")
        namespace, key = _text(request.fields, "namespace"), _text(request.fields, "key")
        if key in self._server.kv.list(namespace):
            await self._server.kv_delete(namespace, key)
        return request.answer(ResponseCode.SUCCESS)

    async def _kv_list(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        """Return all settings of a namespace. For an empty namespace, return the namespaces as keys."""
        namespace, kv = _text(request.fields, "namespace"), self._server.kv
        table = kv.list(namespace) if namespace else dict.fromkeys(kv.namespaces(), "")
        if not table:
            problem = f"No config item, Namespace: {namespace}"
            return request.answer(ResponseCode.QUERY_NOT_FOUND, problem)
        if sum(map(len, table.values())) >= LARGE_BYTES or len(table) >= _MANY_ROWS:
            await large_turns().turn(client_address(connection.host))  # 2 MiB of text take about 10 ms
        return request.answer(ResponseCode.SUCCESS, body=bodies.key_values(table))

    async def _config(self, connection: RemotingConnection, request: RemotingCommand) -> _Answer:
        lines = (f"{name}={value}\n" for name, value in self._settings().items())
        return request.answer(ResponseCode.SUCCESS, body="".join(lines).encode())

    def _check_register(self, connection: RemotingConnection, fields: _Fields) -> None:
        """Check that the sender of a registration, query or heartbeat is the broker that it names."""
        if self._callers is not None:
            context, address = connection.auth_context, _text(fields, "brokerAddr")
            self._callers.check_register(context, _node_id(fields), address)

    def _check_change(self, connection: RemotingConnection, what: str) -> None:
        if self._callers is not None:
            self._callers.check_change(connection.auth_context, what)


def _notify_changes(connection: RemotingConnection, topics: Collection[str]) -> None:
    names = list(topics)
    for start in range(0, len(names), _NOTICE_TOPICS):
        body = bodies.topic_list(names[start : start + _NOTICE_TOPICS])
        connection.notify(RemotingCommand.oneway(RequestCode.ROUTES_CHANGED, body=body))


def _registration(fields: _Fields, body: bodies.RegisterBody) -> Registration:
    # Brokers without elections have no term to compare; RocketMQ's brokers have one only with its controller.
    term = _number(fields, "term", body.version.state_version or NO_TERM)
    return Registration(
        cluster=_text(fields, "clusterName"),
        broker_name=_text(fields, "brokerName"),
        node_id=_node_id(fields),
        broker_id=_number(fields, "brokerId"),
        address=_text(fields, "brokerAddr"),
        term=term,
        role_epoch=_number(fields, "roleEpoch", 0),
        http_address=fields.get("httpAddress", ""),
        data_version=body.version.counter,
        topics=body.topics,
        expire_ms=max(0, _number(fields, "heartbeatTimeoutMillis", 0)),
        ha_address=fields.get("haServerAddr", ""),
        filter_servers=body.filter_servers,
        send_address=fields.get("sendAddress", ""),
        node_address=fields.get("nodeAddress", ""),
        members=tuple(fields.get("members", "").split()),
    )


def _node_id(fields: _Fields) -> str:
    return fields.get("nodeId") or _text(fields, "brokerAddr")


def _text(fields: _Fields, name: str) -> str:
    """Return a field. Raises NameServerRefused (NAMESRV_INVALID) if it is missing."""
    value = fields.get(name)
    if value is None:
        raise invalid(f"the field {name} is missing")
    return value


def _number(fields: _Fields, name: str, default: int | None = None) -> int:
    """Return a 64-bit number. Raises NameServerRefused (NAMESRV_INVALID)."""
    text = fields.get(name)
    if text is None and default is not None:
        return default
    number = long_of(_text(fields, name))
    if number is None:
        raise invalid(f"the field {name} is not a 64-bit number")
    return number
