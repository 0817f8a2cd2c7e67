"""RemotingCommand: its bytes in both forms, and what is refused."""

from __future__ import annotations

import json
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import FrameRefused
from broker_adapter.remoting.codes import Language
from broker_adapter.remoting.command import MAX_HEADER, HeaderForm, RemotingCommand, decode, encode
from broker_adapter.remoting.connection import FrameReader

INTS = st.integers(-(1 << 31), (1 << 31) - 1)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=50)
COMMANDS = st.builds(
    RemotingCommand,
    code=st.integers(-(1 << 15), (1 << 15) - 1),
    fields=st.dictionaries(TEXTS, TEXTS, max_size=5),
    body=st.binary(max_size=200),
    opaque=INTS,
    flag=INTS,
    remark=st.none() | TEXTS.filter(bool),
    language=st.sampled_from(Language),
    version=st.integers(0, (1 << 15) - 1),
    form=st.sampled_from(HeaderForm),
)


def _json_frame(header: object, body: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">i", len(raw)) + raw + body


def _binary_frame(header: bytes) -> bytes:
    return struct.pack(">i", 1 << 24 | len(header)) + header


@given(COMMANDS)
def test_a_command_is_read_as_it_was_written(command: RemotingCommand) -> None:
    assert decode(encode(command)[4:]) == command


class _Number(int):
    """As a member of an IntEnum: a range compares it with each of its numbers, unless it is made an int."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError(f"compared with {other}")

    __hash__ = int.__hash__


@pytest.mark.parametrize("form", HeaderForm)
def test_nobody_looks_for_a_code_among_all_numbers(form: HeaderForm) -> None:
    written = encode(RemotingCommand(_Number(17), form=form))
    assert written == encode(RemotingCommand(17, form=form))


def test_half_a_character_is_a_question_mark() -> None:
    """As Java writes it: nobody can be sent the other half."""
    command = decode(
        _json_frame({"code": 1, "extFields": {"a\udfff": "\ud800b", "é": "💥"}, "remark": "\ud800"})
    )
    assert (command.fields, command.remark) == ({"a?": "?b", "é": "💥"}, "?")


@pytest.mark.slow
@given(st.lists(COMMANDS, max_size=5), st.data())
def test_frames_are_found_wherever_it_is_cut(commands: list[RemotingCommand], data: st.DataObject) -> None:
    stream, reader, found = b"".join(map(encode, commands)), FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        reader.feed(stream[:size])
        stream = stream[size:]
        while (command := reader.next()) is not None:
            found.append(command)
    assert found == commands
    assert reader.buffered == 0


def test_a_json_frame_is_laid_out_as_rocketmq_has_it() -> None:
    frame = encode(RemotingCommand(105, {"topic": "T"}, b"body", opaque=7, flag=2))
    total, mark = struct.unpack_from(">ii", frame)
    assert total == len(frame) - 4
    assert json.loads(frame[8 : 8 + mark]) == {
        "code": 105,
        "extFields": {"topic": "T"},
        "flag": 2,
        "language": "PYTHON",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    assert frame[8 + mark :] == b"body"


def test_a_binary_header_is_laid_out_as_rocketmq_has_it() -> None:
    command = RemotingCommand(10, {"a": "bc"}, opaque=3, flag=1, remark="no", form=HeaderForm.ROCKETMQ)
    header = struct.pack(">hBhii", 10, 3, 479, 3, 1) + b"\0\0\0\x02no" + b"\0\0\0\x09\0\x01a\0\0\0\x02bc"
    assert encode(command) == struct.pack(">ii", 4 + len(header), 1 << 24 | len(header)) + header


def test_a_code_of_pop_is_written_as_json_in_either_form() -> None:
    command = RemotingCommand(200050, form=HeaderForm.ROCKETMQ)
    found = decode(encode(command)[4:])
    assert (found.code, found.form) == (200050, HeaderForm.JSON)


def test_an_answer_has_the_form_and_opaque_of_its_request() -> None:
    request = RemotingCommand(105, opaque=99, form=HeaderForm.ROCKETMQ)
    answer = request.answer(17, "No topic route info", fields={"k": "v"}, body=b"b")
    assert (answer.opaque, answer.form, answer.is_answer, answer.code) == (99, HeaderForm.ROCKETMQ, True, 17)


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (True, "true"), (False, "false"), (1.5, "1.5"), ("x", "x")]
)
def test_values_that_are_no_strings_are_read_as_their_text(value: object, text: str) -> None:
    """ali-ons writes numbers and booleans, the C++ client a mixture."""
    assert decode(_json_frame({"code": 34, "extFields": {"k": value}})).fields == {"k": text}


def test_fields_that_are_null_are_none() -> None:
    assert decode(_json_frame({"code": 34, "extFields": {"k": None}, "remark": None})).fields == {}


def test_a_language_that_came_later_is_another_one() -> None:
    assert decode(_json_frame({"code": 34, "language": "ZIG"})).language == Language.OTHER
    assert decode(encode(RemotingCommand(34, language=200))[4:]).language == Language.OTHER


REFUSED = {
    "nothing": b"",
    "half a mark": b"\0\0\0",
    "a form that is none": struct.pack(">i", 2 << 24),
    "a negative form": struct.pack(">i", -1),
    "a header longer than the frame": struct.pack(">i", 5) + b"{}",
    "a header longer than one may be": struct.pack(">i", MAX_HEADER + 1),
    "no JSON": _json_frame(b"{"),
    "a list": _json_frame([]),
    "deep JSON": _json_frame(b"[" * 100_000),
    "no code": _json_frame({}),
    "a code of text": _json_frame({"code": "10"}),
    "a code that is true": _json_frame({"code": True}),
    "a code of 33 bits": _json_frame({"code": 1 << 31}),
    "a number of 5,000 digits": _json_frame(b'{"code":' + b"9" * 5000 + b"}"),
    "an opaque of 33 bits": _json_frame({"code": 1, "opaque": -(1 << 31) - 1}),
    "fields that are a list": _json_frame({"code": 1, "extFields": []}),
    "a field that is an object": _json_frame({"code": 1, "extFields": {"k": {}}}),
    "1,025 fields": _json_frame({"code": 1, "extFields": dict.fromkeys(map(str, range(1025)), "")}),
    "a remark that is a list": _json_frame({"code": 1, "remark": []}),
    "no UTF-8": _json_frame(b'{"code":1,"remark":"\xff"}'),
    "a short binary header": _binary_frame(b"\0" * 12),
    "a remark of negative length": _binary_frame(b"\0" * 13 + b"\xff\xff\xff\xff" + b"\0" * 4),
    "fields that end too early": _binary_frame(b"\0" * 17 + b"\0\0\0\x01"),
    "fields that end too late": _binary_frame(b"\0" * 17 + b"\0\0\0\x00" + b"\0"),
    "a field's name of negative length": _binary_frame(b"\0" * 17 + b"\0\0\0\x06" + b"\xff\xff" + b"\0" * 4),
    "1,025 binary fields": _binary_frame(b"\0" * 17 + struct.pack(">i", 1025 * 6) + b"\0" * (1025 * 6)),
    "a remark that is no UTF-8": _binary_frame(b"\0" * 13 + b"\0\0\0\x01\xff" + b"\0" * 4),
}


@pytest.mark.parametrize("frame", REFUSED.values(), ids=REFUSED)
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(FrameRefused):
        decode(frame)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_command_or_refused(frame: bytes) -> None:
    with suppress(FrameRefused):
        decode(frame)


@pytest.mark.parametrize("prefix", [-1, 0, 3, (16 << 20) + 1, (1 << 31) - 1])
def test_a_length_is_judged_before_the_frame_has_come(prefix: int) -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">i", prefix))
    with pytest.raises(FrameRefused):
        reader.next()


def test_a_header_is_judged_before_the_frame_has_come() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">ii", 10, 7))
    with pytest.raises(FrameRefused):
        reader.next()


def test_what_is_too_large_is_not_written() -> None:
    with pytest.raises(FrameRefused):
        encode(RemotingCommand(10, body=bytes(16 << 20)))
    with pytest.raises(FrameRefused):
        encode(RemotingCommand(10, {"k": "v" * MAX_HEADER}))
