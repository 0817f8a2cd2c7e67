from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromNode(_message.Message):
    __slots__ = ("hello", "calls", "cancelled", "clients", "gone", "passed_on")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    hello: ForwardHello
    calls: _containers.RepeatedCompositeFieldContainer[ForwardedCall]
    cancelled: _containers.RepeatedScalarFieldContainer[int]
    clients: _containers.RepeatedCompositeFieldContainer[ConnectedClient]
    gone: _containers.RepeatedScalarFieldContainer[str]
    passed_on: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hello: _Optional[_Union[ForwardHello, _Mapping]] = ..., calls: _Optional[_Iterable[_Union[ForwardedCall, _Mapping]]] = ..., cancelled: _Optional[_Iterable[int]] = ..., clients: _Optional[_Iterable[_Union[ConnectedClient, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ..., passed_on: _Optional[_Iterable[int]] = ...) -> None: ...

class FromMaster(_message.Message):
    __slots__ = ("welcome", "answers", "commands", "is_writable")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    IS_WRITABLE_FIELD_NUMBER: _ClassVar[int]
    welcome: ForwardWelcome
    answers: _containers.RepeatedCompositeFieldContainer[ForwardedAnswer]
    commands: _containers.RepeatedCompositeFieldContainer[ClientCommand]
    is_writable: bool
    def __init__(self, welcome: _Optional[_Union[ForwardWelcome, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[ForwardedAnswer, _Mapping]]] = ..., commands: _Optional[_Iterable[_Union[ClientCommand, _Mapping]]] = ..., is_writable: bool = ...) -> None: ...

class ForwardHello(_message.Message):
    __slots__ = ("version", "cluster_id", "group", "node_id", "remote_id", "tells_passed_on", "secret")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REMOTE_ID_FIELD_NUMBER: _ClassVar[int]
    TELLS_PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: str
    group: str
    node_id: str
    remote_id: str
    tells_passed_on: bool
    secret: bytes
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., node_id: _Optional[str] = ..., remote_id: _Optional[str] = ..., tells_passed_on: bool = ..., secret: _Optional[bytes] = ...) -> None: ...

class ForwardWelcome(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class ForwardedCall(_message.Message):
    __slots__ = ("id", "method", "request", "context")
    ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    id: int
    method: str
    request: bytes
    context: CallerContext
    def __init__(self, id: _Optional[int] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., context: _Optional[_Union[CallerContext, _Mapping]] = ...) -> None: ...

class CallerContext(_message.Message):
    __slots__ = ("client_id", "namespace", "language", "client_version", "remote", "account", "listener", "timeout_ms", "is_repeated")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEATED_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    namespace: str
    language: str
    client_version: str
    remote: str
    account: str
    listener: str
    timeout_ms: int
    is_repeated: bool
    def __init__(self, client_id: _Optional[str] = ..., namespace: _Optional[str] = ..., language: _Optional[str] = ..., client_version: _Optional[str] = ..., remote: _Optional[str] = ..., account: _Optional[str] = ..., listener: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., is_repeated: bool = ...) -> None: ...

class ForwardedAnswer(_message.Message):
    __slots__ = ("id", "answer", "is_last", "code", "message")
    ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    id: int
    answer: bytes
    is_last: bool
    code: int
    message: str
    def __init__(self, id: _Optional[int] = ..., answer: _Optional[bytes] = ..., is_last: bool = ..., code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class ConnectedClient(_message.Message):
    __slots__ = ("client_id", "client_type", "group", "topics", "account", "others")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    client_type: int
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    account: str
    others: _containers.RepeatedCompositeFieldContainer[ConnectedClient]
    def __init__(self, client_id: _Optional[str] = ..., client_type: _Optional[int] = ..., group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., account: _Optional[str] = ..., others: _Optional[_Iterable[_Union[ConnectedClient, _Mapping]]] = ...) -> None: ...

class ClientCommand(_message.Message):
    __slots__ = ("client_id", "command")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    command: bytes
    def __init__(self, client_id: _Optional[str] = ..., command: _Optional[bytes] = ...) -> None: ...
