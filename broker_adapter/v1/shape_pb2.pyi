from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SendShape(_message.Message):
    __slots__ = ("request_id", "messages", "more")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    more: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, request_id: _Optional[int] = ..., messages: _Optional[_Iterable[bytes]] = ..., more: _Optional[_Iterable[bytes]] = ...) -> None: ...

class OutgoingMessageShape(_message.Message):
    __slots__ = ("properties",)
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    properties: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, properties: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RegistrationShape(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, topics: _Optional[_Iterable[bytes]] = ...) -> None: ...
