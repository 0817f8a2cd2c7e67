"""Signed requests of the remoting protocol, and what accounts may ask."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.client import ClientOptions, Message, Producer
from broker_adapter.endpoints.v4.requests import ROWS
from broker_adapter.errors import BrokerError, ResponseCode, Status
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import HeaderForm, RemotingCommand, decode, encode
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.remoting.signing import Credentials, is_signed_with, sign
from tests.broker_adapter.client.scripted import route_body_of, serving
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking, send_fields
from tests.broker_adapter.v4.test_remoting_consumers import beat, pull, records
from tests.node.local import until

ACCOUNTS = """
[[accounts]]
access_key = "boss"
secret = "s-boss"
admin = true

[[accounts]]
access_key = "writer"
secret = "s-writer"
topics = { t = "PUB" }

[[accounts]]
access_key = "reader"
secret = "s-reader"
topics = { t = "SUB" }
groups = { g = "SUB" }

[[accounts]]
access_key = "elsewhere"
secret = "s-elsewhere"
admin = true
source_addresses = ["10.0.0.0/8"]
"""
OK, REFUSED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION


class Signer(Asker):
    """Asks as an account."""

    def __init__(self, asker: Asker, key: str, secret: str = "") -> None:
        super().__init__(asker.connection)
        self.credentials = Credentials(key, secret or f"s-{key}")

    async def ask(self, code: int, body: bytes = b"", form: int = 0, **fields: object) -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        command = RemotingCommand(code, texts, body, form=HeaderForm(form))
        sign(command, self.credentials)
        return await self.connection.invoke(command, 40)

    async def sends_to(self, topic: str, body: bytes = b"x") -> RemotingCommand:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, body, **send_fields(topic, 0))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    path = tmp_path / "accounts.toml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    settings = {
        **LISTEN,
        "rocketmq_v2": {"access_control": str(path)},
        "delivery": {"check_first_ms": 50, "check_again_ms": 50},
    }
    async with brokers(tmp_path, 2, settings) as cluster:
        await cluster.master()
        yield cluster


@pytest.fixture
async def asker(cluster: BrokerCluster) -> AsyncIterator[Asker]:
    """At the slave: it decides, and the master answers."""
    slave = next(one for one in cluster.programs.values() if one.writer.expected is None)
    async with asking(slave.remoting.address) as asker:
        yield asker


# -- signatures ---------------------------------------------------------------------------------------------


def test_a_signature_is_over_values_in_the_order_of_names_and_the_body() -> None:
    command = RemotingCommand(10, {"topic": "t", "b": "2", "a": "1", "Zeta": "z"}, b"body")
    sign(command, Credentials("key", "secret", "token"))
    signed = b"key" + b"token" + b"z" + b"1" + b"2" + b"t" + b"body"
    made = hmac.new(b"secret", signed, hashlib.sha1).digest()
    assert command.fields["Signature"] == base64.b64encode(made).decode()
    assert command.fields["SecurityToken"] == "token"


@pytest.mark.parametrize("form", list(HeaderForm))
def test_a_signature_holds_over_the_wire_and_for_nothing_else(form: HeaderForm) -> None:
    command = RemotingCommand(10, {"topic": "\u00fcber\u20ac", "x": ""}, b"body", form=form)
    sign(command, Credentials("key", "secret"))
    found = decode(encode(command)[4:])
    assert is_signed_with(found, "secret")
    assert not is_signed_with(found, "other")
    found.body += b"!"
    assert not is_signed_with(found, "secret")


def test_numbers_and_booleans_are_signed_as_their_text() -> None:
    """As ali-ons sends them."""
    fields = {"AccessKey": "key", "flag": False, "queueId": 3}
    made = hmac.new(b"secret", b"keyfalse3", hashlib.sha1).digest()
    fields["Signature"] = base64.b64encode(made).decode()
    header = json.dumps({"code": 10, "extFields": fields}).encode()
    assert is_signed_with(decode(len(header).to_bytes(4) + header), "secret")


def test_clients_of_4_9_do_not_sign_the_mark_of_a_query_by_id() -> None:
    for is_signed in (True, False):
        command = RemotingCommand(12, {"topic": "t"} | ({"_UNIQUE_KEY_QUERY": "true"} if is_signed else {}))
        sign(command, Credentials("key", "secret"))
        command.fields["_UNIQUE_KEY_QUERY"] = "true"
        assert is_signed_with(command, "secret")
    command.fields["topic"] = "other"
    assert not is_signed_with(command, "secret")


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(ClientOptions(credentials=Credentials("key", "hidden", "hidden")))


# -- what accounts may --------------------------------------------------------------------------------------


#: Codes that only a node on a classic log answers.
OF_CLASSIC = {RequestCode.CHANGE_BROKER_ROLE, RequestCode.DELETE_EXPIRED_COMMITLOG}


async def test_a_node_answers_the_codes_of_the_table(cluster: BrokerCluster) -> None:
    for program in cluster.programs.values():
        assert program.remoting.codes == set(ROWS) - OF_CLASSIC


async def test_who_has_not_signed_is_told_so(asker: Asker) -> None:
    async def remark(who: Asker) -> str:
        answer = await who.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId=0)
        assert answer.code == REFUSED
        return answer.remark or ""

    assert "805 NOT_AUTHENTICATED" in await remark(asker)
    assert "no account has the access key 'stranger'" in await remark(Signer(asker, "stranger"))
    assert "Check signature failed for accessKey=reader" in await remark(Signer(asker, "reader", "wrong"))
    assert "806 NOT_PERMITTED: account elsewhere may not call from 127." in await remark(
        Signer(asker, "elsewhere")
    )
    assert "account writer may not SUB in topic t" in await remark(Signer(asker, "writer"))
    unknown = await asker.ask(9999)
    assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_topics_and_groups_have_rights(asker: Asker) -> None:
    writer, reader = Signer(asker, "writer"), Signer(asker, "reader")
    assert (await writer.sends_to("t")).code == OK
    assert (await writer.sends_to("other")).code == REFUSED
    assert (await reader.sends_to("t")).code == REFUSED
    assert (await writer.ask(RequestCode.HEART_BEAT, beat("w", "g", "t"))).code == REFUSED
    assert (await reader.ask(RequestCode.HEART_BEAT, beat("r", "g", "other"))).code == REFUSED
    assert (await reader.ask(RequestCode.HEART_BEAT, beat("r", "g", "t"))).code == OK
    assert [one.body for one in records((await pull(reader, "t", 0)).body)] == [b"x"]
    assert (await pull(reader, "t", 0, group="another")).code == REFUSED
    assert (await pull(writer, "t", 0)).code == REFUSED
    lock = {"consumerGroup": "g", "clientId": "r", "mqSet": [{"topic": "t", "queueId": 0}]}
    assert (await reader.ask(RequestCode.LOCK_BATCH_MQ, json.dumps(lock).encode())).code == OK
    lock["mqSet"] = [{"topic": "other", "queueId": 0}]
    assert (await reader.ask(RequestCode.LOCK_BATCH_MQ, json.dumps(lock).encode())).code == REFUSED
    # A consumer whose send-back failed sends to its retry topic.
    assert (await reader.sends_to("%RETRY%g")).code == OK
    assert (await writer.sends_to("%RETRY%g")).code == REFUSED


async def test_a_message_found_by_its_place_is_shown_to_who_may_read_it(asker: Asker) -> None:
    boss, reader = Signer(asker, "boss"), Signer(asker, "reader")
    offsets = {}
    for topic in ("t", "secret"):
        answer = await boss.sends_to(topic)
        offsets[topic] = int(answer.fields["msgId"][16:], 16)
    await reader.get(RequestCode.HEART_BEAT, beat("r", "g", "t"))
    for topic, code in (("t", OK), ("secret", REFUSED)):
        offset = offsets[topic]
        assert (await reader.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)).code == code
        back = await reader.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="g", originTopic="t", delayLevel=1
        )
        assert back.code == code
        assert (await boss.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)).code == OK


async def test_administrators_alone_change_what_belongs_to_all(asker: Asker) -> None:
    for key, code in (("writer", REFUSED), ("boss", OK)):
        who = Signer(asker, key)
        assert (await who.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="made")).code == code
        assert (await who.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == code
        assert (await who.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == code


async def test_a_half_message_is_shown_to_who_may_end_its_transaction(
    cluster: BrokerCluster, asker: Asker
) -> None:
    asked: list[str] = []
    address = (await cluster.master()).remoting.address
    said = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "p"}]}).encode()

    async def member(key: str) -> Signer:
        """Of the producers' group, with a client id that is no secret."""

        async def check(connection: RemotingConnection, request: RemotingCommand) -> None:
            asked.append(key)

        dispatch = Dispatch()
        dispatch.register([RequestCode.CHECK_TRANSACTION_STATE], check, Executor("all", 9, 9))
        connection = await connect(address, timeout_s=10, dispatch=dispatch)
        signer = Signer(Asker(connection), key)
        await signer.get(RequestCode.HEART_BEAT, said.replace(b'"c"', f'"{key}"'.encode()))
        return signer

    stranger = await member("reader")
    half = send_fields("t", 0, TRAN_MSG="true", PGROUP="p")
    sent = await Signer(asker, "writer").get(RequestCode.SEND_MESSAGE_V2, b"half", **half)
    producer = await member("writer")
    await until(lambda: len(asked) > 2)
    assert {*asked} == {"writer"}
    end = {"transactionId": sent["transactionId"], "commitOrRollback": 8}
    assert (await stranger.ask(RequestCode.END_TRANSACTION, **end)).code == REFUSED
    assert (await producer.ask(RequestCode.END_TRANSACTION, **end)).code == OK
    for one in (stranger, producer):
        one.connection.close("done")


async def test_the_python_client_signs(cluster: BrokerCluster) -> None:
    address = (await cluster.master()).remoting.address

    def routes(request: RemotingCommand) -> RemotingCommand:
        return request.answer(0, body=route_body_of({"a": address}, queues=2))

    async with serving(routes) as (server,):
        for key, is_let_in in (("writer", True), ("reader", False)):
            options = ClientOptions(credentials=Credentials(key, f"s-{key}"))
            async with Producer("p", server.server.address, options=options) as producer:
                try:
                    await producer.send(Message("t", b"x"))
                except BrokerError as error:
                    assert not is_let_in and error.status is Status.NOT_PERMITTED
                else:
                    assert is_let_in
