"""Hosts, message ids, names of topics, and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.wire.host import NO_HOST, Host
from broker_adapter.wire.message_id import (
    OffsetId,
    format_offset_id,
    format_unique_key,
    parse_offset_id,
)
from broker_adapter.wire.properties import (
    MAX_PROPERTIES_BYTES,
    PropertiesText,
    encode_properties,
    join_properties,
    split_properties,
    text_of,
    with_property,
)
from broker_adapter.wire.topic_names import check_topic_name

ADDRESSES = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
HOSTS = st.builds(Host, ADDRESSES, st.integers(0, 0xFFFF))

# -- hosts


def test_hosts_are_read_from_their_usual_form() -> None:
    assert Host.parse("10.0.0.1:10911") == Host(b"\x0a\x00\x00\x01", 10911)
    assert Host.parse("[fd00::1]:9") == Host(b"\xfd" + bytes(14) + b"\x01", 9)
    assert str(NO_HOST) == "0.0.0.0:0"


@given(HOSTS)
def test_hosts_survive_being_written(host: Host) -> None:
    assert Host.parse(str(host)) == host and host.problem() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:-1",
        "10.0.0.1:65536",
        "10.0.0.1:٣",
        "10.0.0:1",
        "localhost:1",
        "[10.0.0.1]:1",
        "::1:1",
        "[::1:1",
        "[fe80::1%eth0]:1",
    ],
)
def test_other_texts_are_no_hosts(text: str) -> None:
    with pytest.raises(ValueError):
        Host.parse(text)


@pytest.mark.parametrize("host", [Host(b"", 1), Host(bytes(5), 1), Host(bytes(4), -1), Host(bytes(4), 65536)])
def test_hosts_that_no_record_can_hold_say_why(host: Host) -> None:
    assert host.problem()


# -- message ids


def test_an_offset_id_is_address_port_and_offset_in_upper_case() -> None:
    assert format_offset_id(Host.parse("10.0.171.1:10911"), 0x1234ABCD) == (
        "0A00AB01" + "00002A9F" + "000000001234ABCD"
    )
    assert format_offset_id(Host.parse("[fd00::1]:10911"), 48) == (
        "FD000000000000000000000000000001" + "00002A9F" + "0000000000000030"
    )


@given(HOSTS, st.integers(0, 2**63 - 1))
def test_offset_ids_survive_being_written_in_either_case(host: Host, offset: int) -> None:
    text = format_offset_id(host, offset)
    assert len(text) == (56 if host.is_v6 else 32)
    assert parse_offset_id(text) == parse_offset_id(text.lower()) == OffsetId(host, offset)


VALID_ID = "0A00000100002A9F0000000000000030"


@pytest.mark.parametrize("at", range(32))
@pytest.mark.parametrize("bad", ["G", " ", "é", "\0"])
def test_an_offset_id_with_one_foreign_character_is_refused(at: int, bad: str) -> None:
    with pytest.raises(IllegalMessage) as caught:
        parse_offset_id(VALID_ID[:at] + bad + VALID_ID[at + 1 :])
    assert caught.value.status is Status.MESSAGE_ID_INVALID


@pytest.mark.parametrize(
    "text",
    [
        *(VALID_ID[:length] for length in range(32)),
        VALID_ID + "0",
        VALID_ID[:16] + "8" + VALID_ID[17:],  # a negative offset
        VALID_ID[:8] + "00010000" + VALID_ID[16:],  # port 65536
        " ".join(VALID_ID[:22][i : i + 2] for i in range(0, 22, 2)),  # 32 characters, 11 bytes
    ],
)
def test_other_texts_are_no_offset_ids(text: str) -> None:
    with pytest.raises(IllegalMessage) as caught:
        parse_offset_id(text)
    assert caught.value.status is Status.MESSAGE_ID_INVALID


@pytest.mark.parametrize(("host", "offset"), [(Host(b"", 1), 0), (NO_HOST, -1), (NO_HOST, 2**63)])
def test_no_offset_id_is_made_of_what_does_not_fit(host: Host, offset: int) -> None:
    with pytest.raises(IllegalMessage) as caught:
        format_offset_id(host, offset)
    assert caught.value.status is Status.MESSAGE_ID_INVALID


def test_a_unique_key_is_address_process_loader_time_and_counter() -> None:
    key = format_unique_key(bytes([192, 168, 1, 2]), 0x12345, 0x18B4AAC2, 0x1F5C1AD8, 0x1_0007)
    assert key == "C0A80102" + "2345" + "18B4AAC2" + "1F5C1AD8" + "0007"
    assert len(format_unique_key(bytes(16), 1, 2, 3, 4)) == 56
    with pytest.raises(ValueError):
        format_unique_key(bytes(5), 1, 2, 3, 4)


# -- names of topics


@pytest.mark.parametrize(
    "name",
    ["T", "TopicTest", "a-b_c%d|9", "x" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250],
)
def test_a_topic_may_be_called_so(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "a/b", "../x", "名", "a\n", "a\0", "a$", "ａ"])
def test_a_topic_may_not_be_called_so(name: str) -> None:
    with pytest.raises(IllegalMessage) as caught:
        check_topic_name(name)
    assert caught.value.status is Status.TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    "name", ["x" * 128, "%RETRY%" + "g" * 249, "%DLQ%" + "g" * 251, "%RETRY" + "g" * 122]
)
def test_a_name_may_be_too_long(name: str) -> None:
    with pytest.raises(IllegalMessage) as caught:
        check_topic_name(name)
    assert caught.value.status is Status.TOPIC_NAME_TOO_LONG


@given(st.text(st.characters(max_codepoint=0x2FF), min_size=1, max_size=3))
def test_only_the_characters_of_the_rule_are_allowed(name: str) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    allowed = set(letters + letters.upper() + "0123456789%|_-")
    if set(name) <= allowed:
        check_topic_name(name)
    else:
        with pytest.raises(IllegalMessage):
            check_topic_name(name)


# -- properties

PROPERTY_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8
)


def test_properties_are_joined_by_their_separators() -> None:
    assert join_properties({"TAGS": "TagA", "KEYS": "k1 k2"}) == "TAGS\x01TagA\x02KEYS\x01k1 k2\x02"
    assert join_properties({}) == ""


@given(st.dictionaries(PROPERTY_TEXT, PROPERTY_TEXT, max_size=4))
def test_properties_survive_being_joined(properties: dict[str, str]) -> None:
    joined = join_properties(properties)
    assert split_properties(joined) == properties
    assert list(split_properties(joined)) == list(properties)
    assert split_properties(joined.removesuffix("\x02")) == properties


@given(st.text(st.sampled_from("ab\x01\x02"), max_size=12))
def test_any_text_can_be_split_and_what_is_found_can_be_joined_again(text: str) -> None:
    found = split_properties(text)
    if not any("\x01" in value for value in found.values()):
        assert split_properties(join_properties(found)) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a", {}),
        ("a\x01", {}),
        ("\x01b", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ("\x02\x02a\x01b\x02\x02junk\x02", {"a": "b"}),
    ],
)
def test_what_is_no_property_is_passed_over(text: str, expected: dict[str, str]) -> None:
    assert split_properties(text) == expected


@pytest.mark.parametrize(
    "properties",
    [
        {"": "b"},
        {"a": ""},
        {"a\x01": "b"},
        {"a\x02": "b"},
        {"a": "\x01"},
        {"a": "b\x02c\x01d"},
        {"a": "\ud800"},
    ],
)
def test_properties_that_could_not_be_read_again_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(IllegalMessage) as caught:
        join_properties(properties)
    assert caught.value.status is Status.PROPERTIES_INVALID


def test_properties_have_a_limit_in_bytes() -> None:
    longest = "n\x01" + "é" * ((MAX_PROPERTIES_BYTES - 3) // 2) + "\x02"
    assert len(encode_properties(longest)) == MAX_PROPERTIES_BYTES
    assert join_properties(split_properties(longest)) == longest
    for too_long in (lambda: encode_properties(longest + "x"), lambda: join_properties({"n": "x" * 32_765})):
        with pytest.raises(IllegalMessage) as caught:
            too_long()
        assert caught.value.status is Status.PROPERTIES_TOO_LONG


@pytest.mark.parametrize("text", ["TAGS\x01a", "TAGS\x01a\x02", ""])
def test_one_property_more_changes_none_of_the_others(text: str) -> None:
    """Whether or not a separator ends the text."""
    more = with_property(PropertiesText(text), "UNIQ_KEY", "7")
    assert split_properties(more.text) == {**split_properties(text), "UNIQ_KEY": "7"}


def test_properties_as_text_are_a_mapping_and_go_on_as_the_text_they_are() -> None:
    given = PropertiesText("TAGS\x01a\x02none\x02x\x011")
    assert dict(given) == {"TAGS": "a", "x": "1"} and len(given) == 2 and given["x"] == "1"
    assert text_of(given) == "TAGS\x01a\x02none\x02x\x011"
    assert text_of({"TAGS": "a"}) == "TAGS\x01a\x02"
    more = with_property({"TAGS": "a"}, "UNIQ_KEY", "7")
    assert more == {"TAGS": "a", "UNIQ_KEY": "7"} and more.text == "TAGS\x01a\x02UNIQ_KEY\x017\x02"
