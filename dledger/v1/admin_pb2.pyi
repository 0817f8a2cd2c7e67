from dledger.v1 import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status", "node")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    status: _log_pb2.Status
    node: NodeStatus
    def __init__(self, status: _Optional[_Union[_log_pb2.Status, _Mapping]] = ..., node: _Optional[_Union[NodeStatus, _Mapping]] = ...) -> None: ...

class MemberAddress(_message.Message):
    __slots__ = ("node_id", "address", "http_address", "role", "uid")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    http_address: str
    role: str
    uid: int
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., http_address: _Optional[str] = ..., role: _Optional[str] = ..., uid: _Optional[int] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("cluster_id", "group", "node_id", "pid", "version", "address", "http_address", "role", "term", "role_epoch", "incarnation", "leader_id", "leader_address", "leader_since_unix_ms", "ledger_begin_index", "ledger_end_index", "ledger_end_term", "durable_index", "verified_index", "committed_index", "applied_index", "ledger_end_pos", "committed_pos", "flush_mode", "pending_bytes", "disk_used_bytes", "disk_free_bytes", "uptime_ms", "members", "followers", "elections", "limits_hit", "health", "transferring_to", "sessions", "damaged", "rejoining", "needs_image", "no_room", "reserved_bytes", "scrubbed_index", "scrub_found", "repaired", "cluster_time_ms", "clock_offset_ms", "newest_image", "data_file_size", "disk", "fsync_ms", "repairing_index", "writing_image", "tls", "owner", "rebuilding", "clocks", "clock_spread_ms", "age_purge_step_ms", "age_purge_pause_ms", "membership_index", "membership_changes", "uid", "directory")
    class LimitsHitEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEADER_SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_TERM_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_POS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_POS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_MODE_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    ELECTIONS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_HIT_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRING_TO_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    REJOINING_FIELD_NUMBER: _ClassVar[int]
    NEEDS_IMAGE_FIELD_NUMBER: _ClassVar[int]
    NO_ROOM_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRUBBED_INDEX_FIELD_NUMBER: _ClassVar[int]
    SCRUB_FOUND_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_IMAGE_FIELD_NUMBER: _ClassVar[int]
    DATA_FILE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    FSYNC_MS_FIELD_NUMBER: _ClassVar[int]
    REPAIRING_INDEX_FIELD_NUMBER: _ClassVar[int]
    WRITING_IMAGE_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REBUILDING_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_SPREAD_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_PURGE_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_PURGE_PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_CHANGES_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group: str
    node_id: str
    pid: int
    version: str
    address: str
    http_address: str
    role: str
    term: int
    role_epoch: int
    incarnation: int
    leader_id: str
    leader_address: str
    leader_since_unix_ms: int
    ledger_begin_index: int
    ledger_end_index: int
    ledger_end_term: int
    durable_index: int
    verified_index: int
    committed_index: int
    applied_index: int
    ledger_end_pos: int
    committed_pos: int
    flush_mode: str
    pending_bytes: int
    disk_used_bytes: int
    disk_free_bytes: int
    uptime_ms: int
    members: _containers.RepeatedCompositeFieldContainer[MemberAddress]
    followers: _containers.RepeatedCompositeFieldContainer[FollowerStatus]
    elections: _containers.RepeatedCompositeFieldContainer[ElectionEvent]
    limits_hit: _containers.ScalarMap[str, int]
    health: str
    transferring_to: str
    sessions: int
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedRange]
    rejoining: str
    needs_image: bool
    no_room: bool
    reserved_bytes: int
    scrubbed_index: int
    scrub_found: int
    repaired: int
    cluster_time_ms: int
    clock_offset_ms: int
    newest_image: int
    data_file_size: int
    disk: str
    fsync_ms: int
    repairing_index: int
    writing_image: bool
    tls: str
    owner: str
    rebuilding: str
    clocks: _containers.ScalarMap[str, int]
    clock_spread_ms: int
    age_purge_step_ms: int
    age_purge_pause_ms: int
    membership_index: int
    membership_changes: bool
    uid: int
    directory: int
    def __init__(self, cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[str] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., address: _Optional[str] = ..., http_address: _Optional[str] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., role_epoch: _Optional[int] = ..., incarnation: _Optional[int] = ..., leader_id: _Optional[str] = ..., leader_address: _Optional[str] = ..., leader_since_unix_ms: _Optional[int] = ..., ledger_begin_index: _Optional[int] = ..., ledger_end_index: _Optional[int] = ..., ledger_end_term: _Optional[int] = ..., durable_index: _Optional[int] = ..., verified_index: _Optional[int] = ..., committed_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., ledger_end_pos: _Optional[int] = ..., committed_pos: _Optional[int] = ..., flush_mode: _Optional[str] = ..., pending_bytes: _Optional[int] = ..., disk_used_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberAddress, _Mapping]]] = ..., followers: _Optional[_Iterable[_Union[FollowerStatus, _Mapping]]] = ..., elections: _Optional[_Iterable[_Union[ElectionEvent, _Mapping]]] = ..., limits_hit: _Optional[_Mapping[str, int]] = ..., health: _Optional[str] = ..., transferring_to: _Optional[str] = ..., sessions: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ..., rejoining: _Optional[str] = ..., needs_image: bool = ..., no_room: bool = ..., reserved_bytes: _Optional[int] = ..., scrubbed_index: _Optional[int] = ..., scrub_found: _Optional[int] = ..., repaired: _Optional[int] = ..., cluster_time_ms: _Optional[int] = ..., clock_offset_ms: _Optional[int] = ..., newest_image: _Optional[int] = ..., data_file_size: _Optional[int] = ..., disk: _Optional[str] = ..., fsync_ms: _Optional[int] = ..., repairing_index: _Optional[int] = ..., writing_image: bool = ..., tls: _Optional[str] = ..., owner: _Optional[str] = ..., rebuilding: _Optional[str] = ..., clocks: _Optional[_Mapping[str, int]] = ..., clock_spread_ms: _Optional[int] = ..., age_purge_step_ms: _Optional[int] = ..., age_purge_pause_ms: _Optional[int] = ..., membership_index: _Optional[int] = ..., membership_changes: bool = ..., uid: _Optional[int] = ..., directory: _Optional[int] = ...) -> None: ...

class DamagedRange(_message.Message):
    __slots__ = ("first_index", "last_index", "file", "offset", "reason")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    last_index: int
    file: str
    offset: int
    reason: str
    def __init__(self, first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class FollowerStatus(_message.Message):
    __slots__ = ("node_id", "connected", "push_state", "match_index", "lag_entries", "lag_bytes", "inflight_bytes", "last_contact_ms", "owner_lag_bytes", "owner_unfit", "not_ready")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    PUSH_STATE_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_CONTACT_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    OWNER_UNFIT_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    connected: bool
    push_state: str
    match_index: int
    lag_entries: int
    lag_bytes: int
    inflight_bytes: int
    last_contact_ms: int
    owner_lag_bytes: int
    owner_unfit: bool
    not_ready: str
    def __init__(self, node_id: _Optional[str] = ..., connected: bool = ..., push_state: _Optional[str] = ..., match_index: _Optional[int] = ..., lag_entries: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., inflight_bytes: _Optional[int] = ..., last_contact_ms: _Optional[int] = ..., owner_lag_bytes: _Optional[int] = ..., owner_unfit: bool = ..., not_ready: _Optional[str] = ...) -> None: ...

class ElectionEvent(_message.Message):
    __slots__ = ("unix_ms", "term", "role", "leader_id", "cause")
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    unix_ms: int
    term: int
    role: str
    leader_id: str
    cause: str
    def __init__(self, unix_ms: _Optional[int] = ..., term: _Optional[int] = ..., role: _Optional[str] = ..., leader_id: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("group", "to")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    group: str
    to: str
    def __init__(self, group: _Optional[str] = ..., to: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("status", "term", "leader_id")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    status: _log_pb2.Status
    term: int
    leader_id: str
    def __init__(self, status: _Optional[_Union[_log_pb2.Status, _Mapping]] = ..., term: _Optional[int] = ..., leader_id: _Optional[str] = ...) -> None: ...

class ChangeMembersRequest(_message.Message):
    __slots__ = ("group", "steps", "force")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    group: str
    steps: _containers.RepeatedCompositeFieldContainer[MemberStep]
    force: bool
    def __init__(self, group: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[MemberStep, _Mapping]]] = ..., force: bool = ...) -> None: ...

class MemberStep(_message.Message):
    __slots__ = ("kind", "node_id", "address")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    node_id: str
    address: str
    def __init__(self, kind: _Optional[str] = ..., node_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class ChangeMembersResponse(_message.Message):
    __slots__ = ("status", "membership_index")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_INDEX_FIELD_NUMBER: _ClassVar[int]
    status: _log_pb2.Status
    membership_index: int
    def __init__(self, status: _Optional[_Union[_log_pb2.Status, _Mapping]] = ..., membership_index: _Optional[int] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("group", "before_index", "before_age_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BEFORE_INDEX_FIELD_NUMBER: _ClassVar[int]
    BEFORE_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    before_index: int
    before_age_ms: int
    def __init__(self, group: _Optional[str] = ..., before_index: _Optional[int] = ..., before_age_ms: _Optional[int] = ...) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("status", "before_index", "ledger_begin_index")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    status: _log_pb2.Status
    before_index: int
    ledger_begin_index: int
    def __init__(self, status: _Optional[_Union[_log_pb2.Status, _Mapping]] = ..., before_index: _Optional[int] = ..., ledger_begin_index: _Optional[int] = ...) -> None: ...

class ScrubRequest(_message.Message):
    __slots__ = ("group", "bytes_per_second")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    group: str
    bytes_per_second: int
    def __init__(self, group: _Optional[str] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class ScrubResponse(_message.Message):
    __slots__ = ("status", "next_index", "ledger_end_index", "bytes_read", "found", "done")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    status: _log_pb2.Status
    next_index: int
    ledger_end_index: int
    bytes_read: int
    found: _containers.RepeatedCompositeFieldContainer[DamagedRange]
    done: bool
    def __init__(self, status: _Optional[_Union[_log_pb2.Status, _Mapping]] = ..., next_index: _Optional[int] = ..., ledger_end_index: _Optional[int] = ..., bytes_read: _Optional[int] = ..., found: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ..., done: bool = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class BackupResponse(_message.Message):
    __slots__ = ("status", "head", "frames")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    status: _log_pb2.Status
    head: BackupHead
    frames: bytes
    def __init__(self, status: _Optional[_Union[_log_pb2.Status, _Mapping]] = ..., head: _Optional[_Union[BackupHead, _Mapping]] = ..., frames: _Optional[bytes] = ...) -> None: ...

class BackupHead(_message.Message):
    __slots__ = ("cluster_id", "group", "node_id", "data_file_size", "flush_mode", "base_index", "base_term", "base_pos", "base_chain_crc", "last_index", "image")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FILE_SIZE_FIELD_NUMBER: _ClassVar[int]
    FLUSH_MODE_FIELD_NUMBER: _ClassVar[int]
    BASE_INDEX_FIELD_NUMBER: _ClassVar[int]
    BASE_TERM_FIELD_NUMBER: _ClassVar[int]
    BASE_POS_FIELD_NUMBER: _ClassVar[int]
    BASE_CHAIN_CRC_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group: str
    node_id: str
    data_file_size: int
    flush_mode: str
    base_index: int
    base_term: int
    base_pos: int
    base_chain_crc: int
    last_index: int
    image: bytes
    def __init__(self, cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[str] = ..., data_file_size: _Optional[int] = ..., flush_mode: _Optional[str] = ..., base_index: _Optional[int] = ..., base_term: _Optional[int] = ..., base_pos: _Optional[int] = ..., base_chain_crc: _Optional[int] = ..., last_index: _Optional[int] = ..., image: _Optional[bytes] = ...) -> None: ...
