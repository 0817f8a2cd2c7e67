from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_MODE_LINEARIZABLE: _ClassVar[ReadMode]
    READ_MODE_LOCAL: _ClassVar[ReadMode]

class ReadFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_FORMAT_ENTRIES: _ClassVar[ReadFormat]
    READ_FORMAT_FRAMES: _ClassVar[ReadFormat]
READ_MODE_LINEARIZABLE: ReadMode
READ_MODE_LOCAL: ReadMode
READ_FORMAT_ENTRIES: ReadFormat
READ_FORMAT_FRAMES: ReadFormat

class Status(_message.Message):
    __slots__ = ("code", "message", "leader_id", "leader_address")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    leader_id: str
    leader_address: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., leader_id: _Optional[str] = ..., leader_address: _Optional[str] = ...) -> None: ...

class SessionRef(_message.Message):
    __slots__ = ("session_id", "seq")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    seq: int
    def __init__(self, session_id: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("group", "request_id", "bodies", "session", "open_session", "timeout_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    request_id: int
    bodies: _containers.RepeatedScalarFieldContainer[bytes]
    session: SessionRef
    open_session: bool
    timeout_ms: int
    def __init__(self, group: _Optional[str] = ..., request_id: _Optional[int] = ..., bodies: _Optional[_Iterable[bytes]] = ..., session: _Optional[_Union[SessionRef, _Mapping]] = ..., open_session: bool = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("request_id", "status", "index", "count", "term", "pos", "duplicate", "position_forgotten")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    status: Status
    index: int
    count: int
    term: int
    pos: int
    duplicate: bool
    position_forgotten: bool
    def __init__(self, request_id: _Optional[int] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., index: _Optional[int] = ..., count: _Optional[int] = ..., term: _Optional[int] = ..., pos: _Optional[int] = ..., duplicate: bool = ..., position_forgotten: bool = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("group", "from_index", "count", "follow", "mode", "format", "include_internal")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_INTERNAL_FIELD_NUMBER: _ClassVar[int]
    group: str
    from_index: int
    count: int
    follow: bool
    mode: ReadMode
    format: ReadFormat
    include_internal: bool
    def __init__(self, group: _Optional[str] = ..., from_index: _Optional[int] = ..., count: _Optional[int] = ..., follow: bool = ..., mode: _Optional[_Union[ReadMode, str]] = ..., format: _Optional[_Union[ReadFormat, str]] = ..., include_internal: bool = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("index", "term", "pos", "body", "magic")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    pos: int
    body: bytes
    magic: int
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., pos: _Optional[int] = ..., body: _Optional[bytes] = ..., magic: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("status", "entries", "frames", "next_index", "committed_index", "ledger_begin_index")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEDGER_BEGIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    status: Status
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    frames: bytes
    next_index: int
    committed_index: int
    ledger_begin_index: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., frames: _Optional[bytes] = ..., next_index: _Optional[int] = ..., committed_index: _Optional[int] = ..., ledger_begin_index: _Optional[int] = ...) -> None: ...

class ReadIndexRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ReadIndexResponse(_message.Message):
    __slots__ = ("status", "read_index")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    READ_INDEX_FIELD_NUMBER: _ClassVar[int]
    status: Status
    read_index: int
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., read_index: _Optional[int] = ...) -> None: ...
