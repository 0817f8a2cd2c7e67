from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NameServerStatus(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class TopicQueues(_message.Message):
    __slots__ = ("topic", "read_queues", "write_queues", "perm", "sys_flag", "order", "message_type")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int
    order: bool
    message_type: str
    def __init__(self, topic: _Optional[str] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., perm: _Optional[int] = ..., sys_flag: _Optional[int] = ..., order: bool = ..., message_type: _Optional[str] = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "node_id", "broker_id", "role", "address", "http_address", "term", "role_epoch", "data_version", "topics", "expire_ms", "remoting_address")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_MS_FIELD_NUMBER: _ClassVar[int]
    REMOTING_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    node_id: str
    broker_id: int
    role: str
    address: str
    http_address: str
    term: int
    role_epoch: int
    data_version: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    expire_ms: int
    remoting_address: str
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., node_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., http_address: _Optional[str] = ..., term: _Optional[int] = ..., role_epoch: _Optional[int] = ..., data_version: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., expire_ms: _Optional[int] = ..., remoting_address: _Optional[str] = ...) -> None: ...

class RegisterBrokerResponse(_message.Message):
    __slots__ = ("status", "master_address", "master_term")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_TERM_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    master_address: str
    master_term: int
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ..., master_address: _Optional[str] = ..., master_term: _Optional[int] = ...) -> None: ...

class UnregisterBrokerRequest(_message.Message):
    __slots__ = ("broker_name", "node_id", "role_epoch")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    node_id: str
    role_epoch: int
    def __init__(self, broker_name: _Optional[str] = ..., node_id: _Optional[str] = ..., role_epoch: _Optional[int] = ...) -> None: ...

class UnregisterBrokerResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ...) -> None: ...

class BrokerAddress(_message.Message):
    __slots__ = ("broker_id", "address")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class RoutedBroker(_message.Message):
    __slots__ = ("broker_name", "addresses", "queues", "master_term")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MASTER_TERM_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    addresses: _containers.RepeatedCompositeFieldContainer[BrokerAddress]
    queues: TopicQueues
    master_term: int
    def __init__(self, broker_name: _Optional[str] = ..., addresses: _Optional[_Iterable[_Union[BrokerAddress, _Mapping]]] = ..., queues: _Optional[_Union[TopicQueues, _Mapping]] = ..., master_term: _Optional[int] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("topic", "brokers")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    brokers: _containers.RepeatedCompositeFieldContainer[RoutedBroker]
    def __init__(self, topic: _Optional[str] = ..., brokers: _Optional[_Iterable[_Union[RoutedBroker, _Mapping]]] = ...) -> None: ...

class GetRouteRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class GetRouteResponse(_message.Message):
    __slots__ = ("status", "route")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    route: TopicRoute
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ..., route: _Optional[_Union[TopicRoute, _Mapping]] = ...) -> None: ...

class WatchRoutesRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchRoutesResponse(_message.Message):
    __slots__ = ("status", "routes", "complete")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    routes: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    complete: bool
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ..., routes: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ..., complete: bool = ...) -> None: ...

class BrokerInfo(_message.Message):
    __slots__ = ("cluster", "broker_name", "node_id", "broker_id", "role", "address", "http_address", "term", "role_epoch", "last_update_ms", "expire_ms", "has_session", "remoting_address")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_MS_FIELD_NUMBER: _ClassVar[int]
    HAS_SESSION_FIELD_NUMBER: _ClassVar[int]
    REMOTING_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    node_id: str
    broker_id: int
    role: str
    address: str
    http_address: str
    term: int
    role_epoch: int
    last_update_ms: int
    expire_ms: int
    has_session: bool
    remoting_address: str
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., node_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., http_address: _Optional[str] = ..., term: _Optional[int] = ..., role_epoch: _Optional[int] = ..., last_update_ms: _Optional[int] = ..., expire_ms: _Optional[int] = ..., has_session: bool = ..., remoting_address: _Optional[str] = ...) -> None: ...

class GetClusterInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterInfoResponse(_message.Message):
    __slots__ = ("status", "version", "pid", "uptime_ms", "brokers", "topics", "sessions", "watchers", "config_entries", "write_wiped", "limits_hit", "remoting_address")
    class LimitsHitEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    WATCHERS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    WRITE_WIPED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_HIT_FIELD_NUMBER: _ClassVar[int]
    REMOTING_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    version: str
    pid: int
    uptime_ms: int
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerInfo]
    topics: int
    sessions: int
    watchers: int
    config_entries: int
    write_wiped: _containers.RepeatedScalarFieldContainer[str]
    limits_hit: _containers.ScalarMap[str, int]
    remoting_address: str
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ..., version: _Optional[str] = ..., pid: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[BrokerInfo, _Mapping]]] = ..., topics: _Optional[int] = ..., sessions: _Optional[int] = ..., watchers: _Optional[int] = ..., config_entries: _Optional[int] = ..., write_wiped: _Optional[_Iterable[str]] = ..., limits_hit: _Optional[_Mapping[str, int]] = ..., remoting_address: _Optional[str] = ...) -> None: ...

class ListRoutedTopicsRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: str
    def __init__(self, after: _Optional[str] = ...) -> None: ...

class ListRoutedTopicsResponse(_message.Message):
    __slots__ = ("status", "topics", "more")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    topics: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ..., topics: _Optional[_Iterable[str]] = ..., more: bool = ...) -> None: ...

class WipeWritePermissionRequest(_message.Message):
    __slots__ = ("broker_name", "give_back")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    GIVE_BACK_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    give_back: bool
    def __init__(self, broker_name: _Optional[str] = ..., give_back: bool = ...) -> None: ...

class WipeWritePermissionResponse(_message.Message):
    __slots__ = ("status", "topics")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    topics: int
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ..., topics: _Optional[int] = ...) -> None: ...

class PutKvConfigRequest(_message.Message):
    __slots__ = ("namespace", "key", "value")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    value: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class PutKvConfigResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ...) -> None: ...

class GetKvConfigRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class GetKvConfigResponse(_message.Message):
    __slots__ = ("status", "value")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    value: str
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ..., value: _Optional[str] = ...) -> None: ...

class DeleteKvConfigRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class DeleteKvConfigResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ...) -> None: ...

class ListKvConfigRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class ListKvConfigResponse(_message.Message):
    __slots__ = ("status", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    status: NameServerStatus
    values: _containers.ScalarMap[str, str]
    def __init__(self, status: _Optional[_Union[NameServerStatus, _Mapping]] = ..., values: _Optional[_Mapping[str, str]] = ...) -> None: ...
