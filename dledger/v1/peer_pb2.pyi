from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("version", "cluster_id", "group", "local_id", "remote_id", "incarnation", "members", "secret", "rules_version", "directory", "known_directory", "uid", "known_uid", "features")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ID_FIELD_NUMBER: _ClassVar[int]
    REMOTE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    RULES_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_UID_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: str
    group: str
    local_id: str
    remote_id: str
    incarnation: int
    members: _containers.RepeatedScalarFieldContainer[str]
    secret: bytes
    rules_version: int
    directory: int
    known_directory: int
    uid: int
    known_uid: int
    features: int
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., local_id: _Optional[str] = ..., remote_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., secret: _Optional[bytes] = ..., rules_version: _Optional[int] = ..., directory: _Optional[int] = ..., known_directory: _Optional[int] = ..., uid: _Optional[int] = ..., known_uid: _Optional[int] = ..., features: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("envelope", "term", "ledger_end_index", "ledger_end_term", "pre_vote", "transfer", "round", "wall_ms")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_TERM_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    term: int
    ledger_end_index: int
    ledger_end_term: int
    pre_vote: bool
    transfer: bool
    round: int
    wall_ms: int
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., term: _Optional[int] = ..., ledger_end_index: _Optional[int] = ..., ledger_end_term: _Optional[int] = ..., pre_vote: bool = ..., transfer: bool = ..., round: _Optional[int] = ..., wall_ms: _Optional[int] = ...) -> None: ...

class VoteResponse(_message.Message):
    __slots__ = ("refusal", "term", "vote_result", "pre_vote", "round", "incarnation", "wall_ms", "cluster_time")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_RESULT_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    term: int
    vote_result: int
    pre_vote: bool
    round: int
    incarnation: int
    wall_ms: int
    cluster_time: CountedTime
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., term: _Optional[int] = ..., vote_result: _Optional[int] = ..., pre_vote: bool = ..., round: _Optional[int] = ..., incarnation: _Optional[int] = ..., wall_ms: _Optional[int] = ..., cluster_time: _Optional[_Union[CountedTime, _Mapping]] = ...) -> None: ...

class CountedTime(_message.Message):
    __slots__ = ("stamp_ms", "time_ms", "slew_ms")
    STAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SLEW_MS_FIELD_NUMBER: _ClassVar[int]
    stamp_ms: int
    time_ms: int
    slew_ms: int
    def __init__(self, stamp_ms: _Optional[int] = ..., time_ms: _Optional[int] = ..., slew_ms: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("envelope", "term", "round", "committed_index", "wall_ms", "cluster_time", "image")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    term: int
    round: int
    committed_index: int
    wall_ms: int
    cluster_time: CountedTime
    image: int
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., term: _Optional[int] = ..., round: _Optional[int] = ..., committed_index: _Optional[int] = ..., wall_ms: _Optional[int] = ..., cluster_time: _Optional[_Union[CountedTime, _Mapping]] = ..., image: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("refusal", "term", "round", "success", "incarnation", "not_counting", "no_room", "owner", "stored_all", "wall_ms", "features", "image")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NOT_COUNTING_FIELD_NUMBER: _ClassVar[int]
    NO_ROOM_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    STORED_ALL_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    term: int
    round: int
    success: bool
    incarnation: int
    not_counting: bool
    no_room: bool
    owner: OwnerFitness
    stored_all: bool
    wall_ms: int
    features: int
    image: int
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., term: _Optional[int] = ..., round: _Optional[int] = ..., success: bool = ..., incarnation: _Optional[int] = ..., not_counting: bool = ..., no_room: bool = ..., owner: _Optional[_Union[OwnerFitness, _Mapping]] = ..., stored_all: bool = ..., wall_ms: _Optional[int] = ..., features: _Optional[int] = ..., image: _Optional[int] = ...) -> None: ...

class OwnerFitness(_message.Message):
    __slots__ = ("lag_bytes", "unfit")
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    lag_bytes: int
    unfit: bool
    def __init__(self, lag_bytes: _Optional[int] = ..., unfit: bool = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("envelope", "term", "stream_id", "committed_index", "compare", "truncate", "append", "commit", "goodbye", "install_base")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    INSTALL_BASE_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    term: int
    stream_id: int
    committed_index: int
    compare: Compare
    truncate: Truncate
    append: Append
    commit: Commit
    goodbye: Goodbye
    install_base: InstallBase
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., term: _Optional[int] = ..., stream_id: _Optional[int] = ..., committed_index: _Optional[int] = ..., compare: _Optional[_Union[Compare, _Mapping]] = ..., truncate: _Optional[_Union[Truncate, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., install_base: _Optional[_Union[InstallBase, _Mapping]] = ...) -> None: ...

class Compare(_message.Message):
    __slots__ = ("index", "index_term", "chain_crc")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_TERM_FIELD_NUMBER: _ClassVar[int]
    CHAIN_CRC_FIELD_NUMBER: _ClassVar[int]
    index: int
    index_term: int
    chain_crc: int
    def __init__(self, index: _Optional[int] = ..., index_term: _Optional[int] = ..., chain_crc: _Optional[int] = ...) -> None: ...

class Truncate(_message.Message):
    __slots__ = ("index", "index_term")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_TERM_FIELD_NUMBER: _ClassVar[int]
    index: int
    index_term: int
    def __init__(self, index: _Optional[int] = ..., index_term: _Optional[int] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("prev_index", "prev_term", "first_index", "last_index", "frames")
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    prev_index: int
    prev_term: int
    first_index: int
    last_index: int
    frames: bytes
    def __init__(self, prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., frames: _Optional[bytes] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class InstallBase(_message.Message):
    __slots__ = ("index", "term", "pos", "chain_crc", "members")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_CRC_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    pos: int
    chain_crc: int
    members: MembersAt
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., pos: _Optional[int] = ..., chain_crc: _Optional[int] = ..., members: _Optional[_Union[MembersAt, _Mapping]] = ...) -> None: ...

class MembersAt(_message.Message):
    __slots__ = ("index", "term", "members")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    members: bytes
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., members: _Optional[bytes] = ...) -> None: ...

class PushResponse(_message.Message):
    __slots__ = ("refusal", "incarnation", "term", "stream_id", "code", "type", "index", "ledger_begin_index", "ledger_end_index", "conflict_term", "conflict_index", "not_counting", "awaits_new_term", "no_room", "owner")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_TERM_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NOT_COUNTING_FIELD_NUMBER: _ClassVar[int]
    AWAITS_NEW_TERM_FIELD_NUMBER: _ClassVar[int]
    NO_ROOM_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    incarnation: int
    term: int
    stream_id: int
    code: int
    type: int
    index: int
    ledger_begin_index: int
    ledger_end_index: int
    conflict_term: int
    conflict_index: int
    not_counting: bool
    awaits_new_term: bool
    no_room: bool
    owner: OwnerFitness
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., incarnation: _Optional[int] = ..., term: _Optional[int] = ..., stream_id: _Optional[int] = ..., code: _Optional[int] = ..., type: _Optional[int] = ..., index: _Optional[int] = ..., ledger_begin_index: _Optional[int] = ..., ledger_end_index: _Optional[int] = ..., conflict_term: _Optional[int] = ..., conflict_index: _Optional[int] = ..., not_counting: bool = ..., awaits_new_term: bool = ..., no_room: bool = ..., owner: _Optional[_Union[OwnerFitness, _Mapping]] = ...) -> None: ...

class TakeLeadershipRequest(_message.Message):
    __slots__ = ("envelope", "term", "take_leadership_index")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TAKE_LEADERSHIP_INDEX_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    term: int
    take_leadership_index: int
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., term: _Optional[int] = ..., take_leadership_index: _Optional[int] = ...) -> None: ...

class TakeLeadershipResponse(_message.Message):
    __slots__ = ("refusal", "term", "code")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    term: int
    code: int
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., term: _Optional[int] = ..., code: _Optional[int] = ...) -> None: ...

class PositionRequest(_message.Message):
    __slots__ = ("envelope", "term", "round", "directory")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    term: int
    round: int
    directory: int
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., term: _Optional[int] = ..., round: _Optional[int] = ..., directory: _Optional[int] = ...) -> None: ...

class PositionResponse(_message.Message):
    __slots__ = ("refusal", "term", "round", "ledger_end_term", "ledger_end_index", "rejoining", "directories", "memberships")
    class DirectoriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_TERM_FIELD_NUMBER: _ClassVar[int]
    LEDGER_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    REJOINING_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIPS_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    term: int
    round: int
    ledger_end_term: int
    ledger_end_index: int
    rejoining: bool
    directories: _containers.ScalarMap[str, int]
    memberships: _containers.RepeatedCompositeFieldContainer[MembersAt]
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., term: _Optional[int] = ..., round: _Optional[int] = ..., ledger_end_term: _Optional[int] = ..., ledger_end_index: _Optional[int] = ..., rejoining: bool = ..., directories: _Optional[_Mapping[str, int]] = ..., memberships: _Optional[_Iterable[_Union[MembersAt, _Mapping]]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("envelope", "first_index", "last_index", "max_bytes", "uncommitted")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    first_index: int
    last_index: int
    max_bytes: int
    uncommitted: bool
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., max_bytes: _Optional[int] = ..., uncommitted: bool = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("refusal", "first_index", "last_index", "frames")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    first_index: int
    last_index: int
    frames: bytes
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., frames: _Optional[bytes] = ...) -> None: ...

class ImageRequest(_message.Message):
    __slots__ = ("envelope", "least_index", "index", "term", "chunk")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    LEAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    least_index: int
    index: int
    term: int
    chunk: int
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., least_index: _Optional[int] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., chunk: _Optional[int] = ...) -> None: ...

class ImageResponse(_message.Message):
    __slots__ = ("refusal", "manifest", "data")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    manifest: bytes
    data: bytes
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., manifest: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...
