"""What each request code needs of an account, as the table in docs/remoting.md has it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

import pytest

from broker_adapter.endpoints.access.accounts import Account, parse_accounts
from broker_adapter.endpoints.v4.access import RemotingAccess
from broker_adapter.endpoints.v4.requests import ROWS
from broker_adapter.errors import BrokerError, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.signing import Credentials, sign

PAGE = Path(__file__).parents[3] / "docs" / "remoting.md"
PUB, SUB, EITHER, NOTHING = ("PUB",), ("SUB",), ("PUB", "SUB"), ()

TO_SEND = [10, 310, 320, 324, 325, 37, 370]
TO_CONSUME = [11, 361, 14, 15, *range(200050, 200056), 400, 34, 41, 42, 200151]
OF_TOPIC = [12, 29, 30, 31, 32]
OF_GROUP = [36, 35, 38, 203, 208, 307, 309, 352]
OF_EITHER = [202, 300, 351]
SIGNED = [33, 46]
#: By code: rights in the topic, one of which is enough, and whether SUB in the group is needed.
TABLE: Final[Mapping[int, tuple[tuple[str, ...], bool]]] = {
    **dict.fromkeys(TO_SEND, (PUB, False)),
    **dict.fromkeys(TO_CONSUME, (SUB, True)),
    **dict.fromkeys(OF_TOPIC, (SUB, False)),
    **dict.fromkeys(OF_GROUP, (NOTHING, True)),
    **dict.fromkeys(OF_EITHER, (EITHER, False)),
    **dict.fromkeys(SIGNED, (NOTHING, False)),
}
#: Codes that nobody answers.
UNKNOWN = {25, 9999}
V2 = {310, 320, 325}


def account(**fields: Any) -> Account:
    content = {"accounts": [{"access_key": "app", "secret": "s", **fields}]}
    return parse_accounts(content, "here").accounts[0]


def is_let_in(request: RemotingCommand, of: Account) -> bool:
    class Accounts:
        def account(self, access_key: str) -> Account | None:
            return of if access_key == "app" else None

    class Connection:
        peer = "10.0.0.1:5"

    sign(request, Credentials("app", "s"))
    try:
        RemotingAccess(Accounts()).before(cast(RemotingConnection, Connection()), request)
    except BrokerError as error:
        assert error.status is Status.NOT_PERMITTED
        return False
    return True


def asked(code: int, *more: tuple[str, str]) -> RemotingCommand:
    """In topic `t` and group `g`; `more`: topics and groups that a request names beside them."""
    fields = {"topic": "t", "consumerGroup": "g", "group": "g", "transactionId": "id@t"}
    if code in V2:
        fields = {"b": "t"}
    named = [("t", "g"), *more]
    match code:
        case RequestCode.HEART_BEAT:
            consumers = [
                {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
                for topic, group in named
            ]
            body: Any = {"clientID": "c", "consumerDataSet": consumers}
        case RequestCode.LOCK_BATCH_MQ | RequestCode.UNLOCK_BATCH_MQ:
            queues = [{"topic": topic, "brokerName": "b", "queueId": 0} for topic, _ in named]
            body = {"consumerGroup": "g", "clientId": "c", "mqSet": queues}
        case RequestCode.BATCH_ACK_MESSAGE:
            bits = base64.b64encode(b"\1").decode()
            acks = [{"c": group, "t": topic, "b": bits, "so": 0} for topic, group in named]
            body = {"brokerName": "b", "acks": acks}
        case RequestCode.QUERY_ASSIGNMENT:
            body = {"consumerGroup": "g", "topic": "t", "clientId": "c"}
        case _:
            return RemotingCommand(code, fields)
    return RemotingCommand(code, {}, json.dumps(body).encode())


@pytest.mark.parametrize("code", sorted(TABLE))
def test_each_code_needs_its_rights_in_topic_and_group_and_no_others(code: int) -> None:
    topics, needs_group = TABLE[code]
    for topic, group in product(("DENY", "PUB", "SUB"), repeat=2):
        found = is_let_in(asked(code), account(topics={"t": topic}, groups={"g": group}))
        assert found == ((not topics or topic in topics) and (not needs_group or group == "SUB")), (
            topic,
            group,
        )


@pytest.mark.parametrize(
    ("code", "other"),
    [*product((34, 41, 42, 200151), [("other", "g")]), *product((34, 200151), [("t", "other")])],
)
def test_each_topic_and_group_that_a_request_names_is_looked_at(code: int, other: tuple[str, str]) -> None:
    mine = account(topics={"t": "SUB"}, groups={"g": "SUB"})
    assert is_let_in(asked(code), mine)
    assert not is_let_in(asked(code, other), mine)
    assert is_let_in(asked(code, other), account(default_permission="SUB"))


@pytest.mark.parametrize("code", sorted({*ROWS, *UNKNOWN} - TABLE.keys()))
def test_all_other_codes_are_for_administrators(code: int) -> None:
    """Also those that a node does not know: it may learn them without their being in any table."""
    request = RemotingCommand(code, {"topic": "t", "group": "g", "consumerGroup": "g"})
    assert not is_let_in(request, account(default_permission="PUB|SUB"))
    assert is_let_in(request, account(admin=True))


@pytest.mark.parametrize(("group", "may"), [("SUB", True), ("PUB", False), ("DENY", False)])
def test_a_retry_topic_is_sent_to_by_who_consumes_in_its_group(group: str, may: bool) -> None:
    request = RemotingCommand(RequestCode.SEND_MESSAGE, {"topic": "%RETRY%g"})
    assert is_let_in(request, account(groups={"g": group}, topics={"t": "PUB"})) is may


@pytest.mark.parametrize(("right", "may"), [("SUB", True), ("PUB", False), ("DENY", False)])
def test_a_message_that_was_found_is_shown_to_who_may_read_its_topic(right: str, may: bool) -> None:
    found = account(topics={"t": right})

    class Accounts:
        def account(self, access_key: str) -> Account | None:
            return found if access_key == "app" else None

    access = RemotingAccess(Accounts())
    if may:
        access.check_read("app", "t")
    for key, topic in (("app", "other"), ("gone", "t"), ("", "t"), *([] if may else [("app", "t")])):
        with pytest.raises(BrokerError) as caught:
            access.check_read(key, topic)
        assert caught.value.status is Status.NOT_PERMITTED


def test_the_page_names_the_same_codes() -> None:
    section = (
        PAGE.read_text()
        .split("| code | permission for the topic | permission for the group |\n")[1]
        .split("\n\n")[0]
    )
    told = {}
    for row in section.splitlines()[1:]:
        codes, topic, group = (cell.strip() for cell in row.strip("|").split("|"))
        codes = re.sub(r"\(.*?\)", "", codes)
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", codes):
            for code in range(int(first), int(last or first) + 1):
                told[code] = (tuple(re.findall("PUB|SUB", topic)), group == "SUB")
    once_found = {33: (SUB, False), 36: (SUB, True)}  # the topic is looked at once the message is found
    assert told == {**TABLE, **once_found}
