"""Quirks of remoting clients that the broker supports; docs/remoting.md lists them."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.endpoints.v4.sends import Delay, delay_of
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import HeaderForm
from broker_adapter.wire.host import Host, known_host
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import split_properties
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking, send_fields
from tests.broker_adapter.v4.test_remoting_consumers import beat, pull, records

PAGE = Path(__file__).parents[3] / "docs" / "remoting.md"
ZLIB = 1


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 1, LISTEN) as cluster:
        await cluster.master()
        yield cluster


@pytest.fixture
async def asker(cluster: BrokerCluster) -> AsyncIterator[Asker]:
    async with asking((await cluster.master()).remoting.address) as asker:
        yield asker


def test_the_list_names_tests_that_there_are() -> None:
    section = PAGE.read_text().split("## Client quirks\n")[1].split("\n## ")[0]
    named = re.findall(r"`(test_\w+)`: `(test_\w+)`", section)
    assert len(named) > 10
    for module, test in named:
        folders = (Path(__file__).parent, Path(__file__).parents[1] / "remoting")
        (found,) = [path for folder in folders for path in folder.glob(f"{module}.py")]
        assert f"def {test}(" in found.read_text(), (module, test)


async def test_a_member_is_in_the_list_that_it_asks_for(asker: Asker) -> None:
    """Clients assign no queue to themselves while the list lacks them."""
    await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    listed = await asker.body(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert listed["consumerIdList"] == ["c1"]


async def test_the_first_heartbeat_makes_the_retry_topic(asker: Asker, cluster: BrokerCluster) -> None:
    """Consumers ask for its route when they start, and fail without it."""
    await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    config = (await cluster.master()).metadata.topic("%RETRY%g")
    assert config is not None and config.read_queues == 1


async def test_credentials_do_not_matter_where_nobody_needs_them(asker: Asker) -> None:
    """C++ signs with an empty name and a key of its own when it has none."""
    fields = {**send_fields("t", 0), "AccessKey": "", "Signature": "c2lnbmVk", "OnsChannel": "ALIYUN"}
    sent = await asker.get(RequestCode.SEND_MESSAGE_V2, b"x", **fields)
    assert sent["queueOffset"] == "0"


async def test_the_id_in_an_answer_leads_to_the_record(asker: Asker) -> None:
    """Clients show the id that they make of the record: it is that of the answer."""
    sent = await asker.send("t", b"x", 0)
    (message,) = records((await pull(asker, "t", 0)).body)
    assert sent["msgId"] == message.offset_id
    assert int(sent["msgId"][-16:], 16) == message.physical_offset
    view = await asker.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=message.physical_offset)
    assert decode(view.body).body == b"x"


async def test_bodies_that_clients_compressed_stay_as_they_are(asker: Asker) -> None:
    """ali-ons and C++ do so from 4,000 bytes on, and inflate by the bit of the record."""
    body = zlib.compress(bytes(6_000))
    await asker.get(RequestCode.SEND_MESSAGE_V2, body, **{**send_fields("t", 0), "f": ZLIB})
    await asker.send("t", b"", 0)
    (message, _) = records((await pull(asker, "t", 0)).body)
    assert (message.body, message.sys_flag & ZLIB) == (body, ZLIB)


async def test_a_message_with_a_tag_is_never_missing(asker: Asker) -> None:
    """Brokers may send more than was asked for, since clients look at the tags themselves: not less."""
    for tag in ("a", "b", "Aa", "BB"):  # the last two have one hash in Java
        await asker.send("t", tag.encode(), 0, TAGS=tag)
    found = records((await pull(asker, "t", 0, subscription="a || Aa")).body)
    assert {b"a", b"Aa"} <= {one.body for one in found} <= {b"a", b"Aa", b"BB"}


async def test_properties_that_nobody_knows_are_kept(asker: Asker) -> None:
    """ali-ons names the key of ordered messages as no other client does."""
    await asker.send("t", b"x", 0, __SHARDING_KEY="k", mine="1")
    (message,) = records((await pull(asker, "t", 0)).body)
    properties = split_properties(message.properties)
    assert (properties["__SHARDING_KEY"], properties["mine"]) == ("k", "1")


def test_ali_ons_delays_by_a_property_of_its_own() -> None:
    assert delay_of({"__STARTDELIVERTIME": "5000"}, 1_000) == Delay(5_000)


async def test_a_code_that_nobody_knows_is_answered_with_3(asker: Asker) -> None:
    """Clients of other versions ask what may be left out, and go on after this answer only."""
    answer = await asker.ask(4_711)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and answer.remark


@pytest.mark.parametrize("form", HeaderForm)
async def test_answers_have_the_form_of_their_request(asker: Asker, form: HeaderForm) -> None:
    answer = await asker.ask(RequestCode.GET_MAX_OFFSET, form=form, topic="nobody's", queueId=0)
    assert answer.form == form


def test_born_hosts_are_of_ipv4() -> None:
    """ali-ons and C++ read records with addresses of IPv6 wrongly, those behind them as well."""
    assert known_host("[::ffff:10.1.2.3]:5") == Host(bytes((10, 1, 2, 3)), 5)
    assert known_host("[fd00::1]:7") == Host(bytes(4), 7)
    assert known_host("10.1.2.3:5") == Host(bytes((10, 1, 2, 3)), 5)


async def test_an_orderly_consumer_gets_its_locks_as_a_list_of_queues(asker: Asker) -> None:
    queues = [{"topic": "t", "brokerName": "broker-a", "queueId": n} for n in range(2)]
    asked = json.dumps({"consumerGroup": "g", "clientId": "c1", "mqSet": queues}).encode()
    locked = await asker.body(RequestCode.LOCK_BATCH_MQ, asked)
    assert sorted(one["queueId"] for one in locked["lockOKMQSet"]) == [0, 1]
