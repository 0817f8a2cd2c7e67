"""RemotingCommand, one request or response, and its encoding.

Frame format, big endian: an int32 with the length of the rest; an int32 whose first byte is the header's form
(0: JSON, 1: ROCKETMQ) and whose other bytes are the header's length; the header; the body. Sources:
RocketMQ's RemotingCommand, RemotingSerializable and RocketMQSerializable.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from sys import getsizeof
from typing import Any, Final

import orjson

from broker_adapter.errors import FrameRefused
from broker_adapter.remoting.codes import Language

MAX_FRAME: Final = 16 << 20  # bytes after the length; RocketMQ's com.rocketmq.remoting.frameMaxLength
#: A header includes up to 32 KiB of message properties, in which JSON needs up to six bytes per control
#: character.
MAX_HEADER: Final = 256 << 10
MAX_FIELDS: Final = 1024
#: Version that this implementation reports. It implies support for standard JSON routes (V4_9_4 and newer).
VERSION: Final = 479
PREFIX: Final = struct.Struct(">ii")

_LANGUAGE_NAMES = {int(language): language.name for language in Language}
_FLAG_RESPONSE: Final = 1
_FLAG_ONEWAY: Final = 2
_HEAD = struct.Struct(">hBhii")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_INTS = range(-(1 << 31), 1 << 31)
_SHORTS = range(-(1 << 15), 1 << 15)


class HeaderForm(IntEnum):
    """The serialization of a header: the first byte of a frame's second number."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class RemotingCommand:
    """A request or response.

    `fields`: RocketMQ's extFields, always strings. `opaque` pairs a response with its request.
    """

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = Language.PYTHON
    version: int = VERSION
    form: HeaderForm = HeaderForm.JSON

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & _FLAG_RESPONSE)

    @property
    def memory(self) -> int:
        """Return the approximate memory of body and header texts, in bytes."""
        size = len(self.body) + len(self.remark or "")
        return size + sum(map(getsizeof, self.fields)) + sum(map(getsizeof, self.fields.values()))

    @property
    def is_oneway(self) -> bool:
        """True if the sender expects no response."""
        return bool(self.flag & _FLAG_ONEWAY)

    @classmethod
    def oneway(cls, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        return cls(code, dict(fields or {}), body, flag=_FLAG_ONEWAY)

    def answer(
        self,
        code: int,
        remark: str | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Build a response to this request, with the same form of header."""
        return RemotingCommand(
            code, dict(fields or {}), body, self.opaque, _FLAG_RESPONSE, remark, form=self.form
        )


def encode(command: RemotingCommand) -> bytes:
    """Encode the whole frame. Raises FrameRefused (FRAME_INVALID) if the frame or its header is too large.

    A code above 32767 (POP) does not fit into a ROCKETMQ header, so such a command is written as JSON.
    """
    # Convert to int: `in` with an IntEnum member scans the whole range, which takes a millisecond.
    form = command.form if int(command.code) in _SHORTS else HeaderForm.JSON
    header = _encode_json(command) if form is HeaderForm.JSON else _encode_binary(command)
    length = _INT.size + len(header) + len(command.body)
    if length > MAX_FRAME or len(header) > MAX_HEADER:
        raise FrameRefused(
            f"the command ({length} bytes) or its header ({len(header)} bytes) is too large; the limits "
            f"are {MAX_FRAME} and {MAX_HEADER}"
        )
    return b"".join((PREFIX.pack(length, form << 24 | len(header)), header, command.body))


def split_mark(mark: int) -> tuple[HeaderForm, int]:
    """Return the form and length of a header. Raises FrameRefused (FRAME_INVALID)."""
    form, length = mark >> 24, mark & 0xFFFFFF
    if form not in (HeaderForm.JSON, HeaderForm.ROCKETMQ):
        raise FrameRefused(f"header form {form} is unknown; 0 is JSON, 1 is ROCKETMQ")
    if length > MAX_HEADER:
        raise FrameRefused(f"the header is {length} bytes long; the limit is {MAX_HEADER}")
    return HeaderForm(form), length


def decode(frame: bytes | memoryview) -> RemotingCommand:
    """Decode a frame without its leading length. Raises FrameRefused (FRAME_INVALID)."""
    view = memoryview(frame)
    if len(view) < _INT.size:
        raise FrameRefused(f"the frame of {len(view)} bytes has no header")
    form, length = split_mark(_INT.unpack_from(view)[0])
    end = _INT.size + length
    if end > len(view):
        raise FrameRefused(f"the header of {length} bytes does not fit in a frame of {len(view)}")
    header = bytes(view[_INT.size : end])
    command = _decode_json(header) if form is HeaderForm.JSON else _decode_binary(header)
    command.body = bytes(view[end:])
    return command


# -- JSON ---------------------------------------------------------------------------------------------------


def _encode_json(command: RemotingCommand) -> bytes:
    header: dict[str, Any] = {
        "code": command.code,
        "extFields": command.fields,
        "flag": command.flag,
        "language": _language_name(command.language),
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    try:
        return orjson.dumps(header)
    except orjson.JSONEncodeError:  # lone surrogates
        return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _decode_json(header: bytes) -> RemotingCommand:
    try:
        found = _load_json(header)
    except (ValueError, RecursionError) as error:
        raise FrameRefused(f"header is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(found, dict):
        raise FrameRefused("header is not a JSON object")
    remark = found.get("remark")
    return RemotingCommand(
        code=_json_int(found, "code", None),
        fields=_json_fields(found.get("extFields")),
        opaque=_json_int(found, "opaque", 0),
        flag=_json_int(found, "flag", 0),
        remark=remark if remark is None or type(remark) is str else _json_text("remark", remark),
        language=_json_language(found.get("language")),
        version=_json_int(found, "version", 0),
        form=HeaderForm.JSON,
    )


def _load_json(header: bytes) -> object:
    try:
        return orjson.loads(header)
    except orjson.JSONDecodeError:
        # JSON may contain lone surrogates, which cannot be encoded as UTF-8. Java writes a "?" for them.
        text = json.dumps(json.loads(header), ensure_ascii=False)
        return orjson.loads(text.encode("utf-8", "replace"))


def _json_int(found: Mapping[str, Any], name: str, default: int | None) -> int:
    value = found.get(name, default)
    if type(value) is not int or value not in _INTS:
        raise FrameRefused(f"{name} is not a 32-bit integer")
    return value


def _json_fields(found: object) -> dict[str, str]:
    """Decode extFields. Some clients write numbers and booleans without quotes, which are
    converted to text.
    """
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise FrameRefused("extFields is not an object")
    if len(found) > MAX_FIELDS:
        raise FrameRefused(f"{len(found)} extFields exceed the maximum of {MAX_FIELDS}")
    return {
        name: value if type(value) is str else _json_text(name, value)
        for name, value in found.items()
        if value is not None
    }


def _json_text(name: str, value: object) -> str:
    """Convert a value that is not a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise FrameRefused(f"{name[:100]} is neither a string nor a number")


def _json_language(found: object) -> int:
    """Return the language with this name, or OTHER if this version does not know the name."""
    if isinstance(found, str):
        return Language.__members__.get(found, Language.OTHER)
    return Language.OTHER


def _language_name(language: int) -> str:
    return _LANGUAGE_NAMES.get(language, Language.OTHER.name)


# -- ROCKETMQ -----------------------------------------------------------------------------------------------


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode("utf-8", "replace")
    written = [
        _HEAD.pack(
            command.code, command.language & 0xFF, command.version & 0x7FFF, command.opaque, command.flag
        ),
        _INT.pack(len(remark)),
        remark,
        b"",  # length of the fields, set below
    ]
    for name, value in command.fields.items():
        raw_name, raw = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        if len(raw_name) not in _SHORTS:
            raise FrameRefused(f"the field name of {len(raw_name)} bytes is too long")
        written += (_SHORT.pack(len(raw_name)), raw_name, _INT.pack(len(raw)), raw)
    written[3] = _INT.pack(sum(map(len, written[4:])))
    return b"".join(written)


def _decode_binary(header: bytes) -> RemotingCommand:
    reader = _Reader(header)
    code, language, version, opaque, flag = _HEAD.unpack(reader.read(_HEAD.size))
    remark = reader.text(reader.number(_INT))
    fields_size = reader.number(_INT)
    if fields_size != reader.remaining:
        raise FrameRefused(
            f"the fields are {fields_size} bytes long, but only {reader.remaining} bytes of the header remain"
        )
    fields: dict[str, str] = {}
    for _ in range(MAX_FIELDS):
        if not reader.remaining:
            break
        name = reader.text(reader.number(_SHORT))
        fields[name] = reader.text(reader.number(_INT))
    if reader.remaining:
        raise FrameRefused(f"the header has more than {MAX_FIELDS} fields")
    return RemotingCommand(
        code, fields, b"", opaque, flag, remark or None, language, version, HeaderForm.ROCKETMQ
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.remaining:
            raise FrameRefused(
                f"a field is {size} bytes long, but only {self.remaining} bytes of the header remain"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, form: struct.Struct) -> int:
        value: int = form.unpack(self.read(form.size))[0]
        return value

    def text(self, size: int) -> str:
        try:
            return self.read(size).decode()
        except UnicodeDecodeError:
            raise FrameRefused("header text is not valid UTF-8") from None
