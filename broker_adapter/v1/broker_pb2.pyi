from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PullCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_CODE_FOUND: _ClassVar[PullCode]
    PULL_CODE_NO_NEW_MESSAGE: _ClassVar[PullCode]
    PULL_CODE_NO_MATCHED_MESSAGE: _ClassVar[PullCode]
    PULL_CODE_OFFSET_ILLEGAL: _ClassVar[PullCode]

class BrokerRoleCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BROKER_ROLE_CODE_SLAVE: _ClassVar[BrokerRoleCode]
    BROKER_ROLE_CODE_SYNC_MASTER: _ClassVar[BrokerRoleCode]
    BROKER_ROLE_CODE_ASYNC_MASTER: _ClassVar[BrokerRoleCode]
PULL_CODE_FOUND: PullCode
PULL_CODE_NO_NEW_MESSAGE: PullCode
PULL_CODE_NO_MATCHED_MESSAGE: PullCode
PULL_CODE_OFFSET_ILLEGAL: PullCode
BROKER_ROLE_CODE_SLAVE: BrokerRoleCode
BROKER_ROLE_CODE_SYNC_MASTER: BrokerRoleCode
BROKER_ROLE_CODE_ASYNC_MASTER: BrokerRoleCode

class BrokerStatus(_message.Message):
    __slots__ = ("code", "response_code", "message", "master_address")
    CODE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    code: int
    response_code: int
    message: str
    master_address: str
    def __init__(self, code: _Optional[int] = ..., response_code: _Optional[int] = ..., message: _Optional[str] = ..., master_address: _Optional[str] = ...) -> None: ...

class OutgoingMessage(_message.Message):
    __slots__ = ("body", "properties", "flag", "sys_flag", "born_timestamp")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    properties: _containers.ScalarMap[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    def __init__(self, body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., flag: _Optional[int] = ..., sys_flag: _Optional[int] = ..., born_timestamp: _Optional[int] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("request_id", "topic", "queue_id", "messages", "timeout_ms", "columns", "more")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    topic: str
    queue_id: int
    messages: _containers.RepeatedCompositeFieldContainer[OutgoingMessage]
    timeout_ms: int
    columns: MessageColumns
    more: _containers.RepeatedCompositeFieldContainer[SendRequest]
    def __init__(self, request_id: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[OutgoingMessage, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., columns: _Optional[_Union[MessageColumns, _Mapping]] = ..., more: _Optional[_Iterable[_Union[SendRequest, _Mapping]]] = ...) -> None: ...

class MessageColumns(_message.Message):
    __slots__ = ("bodies", "properties", "flags", "sys_flags", "born_timestamps")
    BODIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAGS_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    properties: _containers.RepeatedScalarFieldContainer[str]
    flags: _containers.RepeatedScalarFieldContainer[int]
    sys_flags: _containers.RepeatedScalarFieldContainer[int]
    born_timestamps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bodies: _Optional[_Iterable[bytes]] = ..., properties: _Optional[_Iterable[str]] = ..., flags: _Optional[_Iterable[int]] = ..., sys_flags: _Optional[_Iterable[int]] = ..., born_timestamps: _Optional[_Iterable[int]] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("request_id", "status", "queue_id", "queue_offset", "physical_offsets", "offset_ids", "term", "store_host", "more", "node_id", "index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_IDS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    status: BrokerStatus
    queue_id: int
    queue_offset: int
    physical_offsets: _containers.RepeatedScalarFieldContainer[int]
    offset_ids: _containers.RepeatedScalarFieldContainer[str]
    term: int
    store_host: bytes
    more: _containers.RepeatedCompositeFieldContainer[SendResponse]
    node_id: str
    index: int
    def __init__(self, request_id: _Optional[int] = ..., status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offsets: _Optional[_Iterable[int]] = ..., offset_ids: _Optional[_Iterable[str]] = ..., term: _Optional[int] = ..., store_host: _Optional[bytes] = ..., more: _Optional[_Iterable[_Union[SendResponse, _Mapping]]] = ..., node_id: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "max_messages", "max_bytes", "tags", "wait_ms", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    max_messages: int
    max_bytes: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    wait_ms: int
    group: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., wait_ms: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("status", "pull_code", "next_offset", "min_offset", "max_offset", "records")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PULL_CODE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    pull_code: PullCode
    next_offset: int
    min_offset: int
    max_offset: int
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., pull_code: _Optional[_Union[PullCode, str]] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MessageAtRequest(_message.Message):
    __slots__ = ("physical_offset",)
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    def __init__(self, physical_offset: _Optional[int] = ...) -> None: ...

class MessageAtResponse(_message.Message):
    __slots__ = ("status", "record")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    record: bytes
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., record: _Optional[bytes] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("topic", "key", "begin_ms", "end_ms", "max_messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    begin_ms: int
    end_ms: int
    max_messages: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., max_messages: _Optional[int] = ...) -> None: ...

class QueryResponse(_message.Message):
    __slots__ = ("status", "records")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class OffsetByTimeRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "timestamp_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    timestamp_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class OffsetByTimeResponse(_message.Message):
    __slots__ = ("status", "offset")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    offset: int
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class GetBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBrokerResponse(_message.Message):
    __slots__ = ("status", "cluster", "broker_name", "broker_id", "role", "term", "role_epoch", "node_id", "address", "master_address")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    cluster: str
    broker_name: str
    broker_id: int
    role: BrokerRoleCode
    term: int
    role_epoch: int
    node_id: str
    address: str
    master_address: str
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., role: _Optional[_Union[BrokerRoleCode, str]] = ..., term: _Optional[int] = ..., role_epoch: _Optional[int] = ..., node_id: _Optional[str] = ..., address: _Optional[str] = ..., master_address: _Optional[str] = ...) -> None: ...

class TopicSettings(_message.Message):
    __slots__ = ("name", "read_queues", "write_queues", "perm", "sys_flag", "order", "message_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int
    order: bool
    message_type: str
    def __init__(self, name: _Optional[str] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., perm: _Optional[int] = ..., sys_flag: _Optional[int] = ..., order: bool = ..., message_type: _Optional[str] = ...) -> None: ...

class PutTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicSettings
    def __init__(self, topic: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class PutTopicResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("status", "topics")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    topics: _containers.RepeatedCompositeFieldContainer[TopicSettings]
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicSettings, _Mapping]]] = ...) -> None: ...

class TopicStatsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class QueueStatsEntry(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "last_update_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_update_ms: _Optional[int] = ...) -> None: ...

class TopicStatsResponse(_message.Message):
    __slots__ = ("status", "queues")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    queues: _containers.RepeatedCompositeFieldContainer[QueueStatsEntry]
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueStatsEntry, _Mapping]]] = ...) -> None: ...

class GroupSettings(_message.Message):
    __slots__ = ("name", "consume_enable", "consume_from_min_enable", "consume_broadcast_enable", "retry_queues", "retry_max_times", "consume_orderly")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FROM_MIN_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_BROADCAST_ENABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_QUEUES_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_TIMES_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ORDERLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    retry_queues: int
    retry_max_times: int
    consume_orderly: bool
    def __init__(self, name: _Optional[str] = ..., consume_enable: bool = ..., consume_from_min_enable: bool = ..., consume_broadcast_enable: bool = ..., retry_queues: _Optional[int] = ..., retry_max_times: _Optional[int] = ..., consume_orderly: bool = ...) -> None: ...

class PutGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: GroupSettings
    def __init__(self, group: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class PutGroupResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("status", "groups")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    groups: _containers.RepeatedCompositeFieldContainer[GroupSettings]
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupSettings, _Mapping]]] = ...) -> None: ...

class QueueOffsetEntry(_message.Message):
    __slots__ = ("topic", "queue_id", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "generation", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    generation: int
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffsetEntry]
    def __init__(self, group: _Optional[str] = ..., generation: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[QueueOffsetEntry, _Mapping]]] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ...) -> None: ...

class FetchOffsetsRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class FetchOffsetsResponse(_message.Message):
    __slots__ = ("status", "generation", "offsets")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    generation: int
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffsetEntry]
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., generation: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[QueueOffsetEntry, _Mapping]]] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffsetEntry]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[QueueOffsetEntry, _Mapping]]] = ...) -> None: ...

class ResetOffsetsResponse(_message.Message):
    __slots__ = ("status", "generation")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    generation: int
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("group", "member_id", "topics", "lease_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    lease_ms: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class AssignedQueue(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("status", "generation", "queues", "members", "heartbeat_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    generation: int
    queues: _containers.RepeatedCompositeFieldContainer[AssignedQueue]
    members: int
    heartbeat_ms: int
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ..., generation: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[AssignedQueue, _Mapping]]] = ..., members: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group", "member_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: BrokerStatus
    def __init__(self, status: _Optional[_Union[BrokerStatus, _Mapping]] = ...) -> None: ...
