"""The service on a broker's node: switched on, placed and limited by the node's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.config.settings import parse_settings
from broker_adapter.endpoints.v5.messages.methods import METHODS, SERVICE_NAME
from broker_adapter.errors import Busy
from broker_adapter.server.broker_status import BrokerStatus
from broker_adapter.server.program import BrokerProgram
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger import ConfigError
from dledger.infra.transport.channels import open_channel
from dledger.node.setup.config import parse_config
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.namesrv.helpers import until
from tests.broker_adapter.sending import send_to
from tests.broker_adapter.v5.world import HEADERS, message, resource


async def call(address: str, method: str, request: Any) -> Any:
    async with open_channel(address) as channel:
        unary: Any = channel.unary_unary(f"/{SERVICE_NAME}/{method}")
        answer = await unary(request.SerializeToString(), metadata=tuple(HEADERS.items()), timeout=10)
    return METHODS[method].answer.FromString(answer)


async def test_a_node_tells_where_topics_are_and_creates_them_for_what_is_sent(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"rocketmq_v2": {"advertise": {"n1": "10.0.0.1:80"}}}) as cluster:
        request = calls.QueryRouteRequest(topic=resource("fresh"))
        answer = await call(cluster.members["n1"], "QueryRoute", request)
        assert answer.status.code == pb.Code.OK
        assert [queue.id for queue in answer.message_queues] == [0, 1]
        (address,) = answer.message_queues[0].broker.endpoints.addresses
        assert (address.host, address.port) == ("10.0.0.1", 80)
        metadata = cluster.programs["n1"].metadata
        assert not metadata.topics
        send = calls.SendMessageRequest(messages=[message(topic="fresh")])
        sent = await call(cluster.members["n1"], "SendMessage", send)
        assert sent.status.code == pb.Code.OK
        assert list(metadata.topics) == ["fresh"]
        assert await call(cluster.members["n1"], "QueryRoute", request) == answer


async def test_routes_of_topics_that_are_not_there_fill_no_table(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        for n in range(20):
            request = calls.QueryRouteRequest(topic=resource(f"t{n}"))
            assert (await call(cluster.members["n1"], "QueryRoute", request)).status.code == pb.Code.OK
            ask = calls.QueryAssignmentRequest(topic=resource(f"t{n}"), group=resource("g"))
            assert (await call(cluster.members["n1"], "QueryAssignment", ask)).status.code == pb.Code.OK
        assert not cluster.programs["n1"].metadata.topics


async def test_one_client_does_not_take_the_table_of_topics_from_others(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"auto_create_per_client": 3, "auto_create_up_to": 5}) as cluster:
        program = await cluster.master()
        broker = program.broker

        async def send(topic: str, client: str) -> None:
            await send_to(program, topic, OutgoingMessage(b"x"), born_host=client)

        for n in range(3):
            await send(f"greedy{n}", f"10.0.0.1:{n + 1}")
        with pytest.raises(Busy, match=r"10\.0\.0\.1 has already created"):
            await send("greedy3", "10.0.0.1:9")
        await send("greedy0", "10.0.0.1:9")  # one that is there
        await send("good", "10.0.0.2:1")
        await broker.delete_topic("greedy1")
        await send("greedy4", "10.0.0.1:9")
        await send("last", "10.0.0.2:1")
        with pytest.raises(Busy, match="administrators"):
            await send("beyond", "10.0.0.3:1")
        await broker.put_topic(TopicConfig("by-an-admin"))
        await send("by-an-admin", "10.0.0.1:9")


async def test_metrics_count_clients(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster, open_channel(cluster.members["n1"]) as channel:
        metrics = BrokerStatus(cluster.programs["n1"]).metrics

        def clients() -> float:
            return sum(s.value for m in metrics() if m.name == "broker_clients" for s in m.samples)

        assert clients() == 0
        telemetry: Any = channel.stream_stream(f"/{SERVICE_NAME}/Telemetry")
        stream = telemetry(metadata=tuple(HEADERS.items()))
        settings = pb.Settings(client_type=pb.ClientType.PRODUCER)
        await stream.write(calls.TelemetryCommand(settings=settings).SerializeToString())
        await stream.read()
        assert clients() == 1
        await stream.done_writing()
        await until(lambda: clients() == 0)


async def test_the_service_can_be_switched_off(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"rocketmq_v2": {"enabled": False}}) as cluster:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(cluster.members["n1"], "QueryRoute", calls.QueryRouteRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "settings",
    [
        {"advertise": {"n1": "no address"}},
        {"max_clients": 0},
        {"min_polling_ms": 2, "max_polling_ms": 1},
        {"unknown": 1},
    ],
)
def test_settings_that_are_wrong_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="rocketmq_v2"):
        parse_settings({"rocketmq_v2": settings})


def test_only_members_can_be_advertised(tmp_path: Path) -> None:
    config = parse_config(
        {
            "directory": str(tmp_path),
            "node_id": "n1",
            "cluster_id": "c",
            "members": {"n1": "127.0.0.1:1"},
        }
    )
    program = BrokerProgram(config, parse_settings({"rocketmq_v2": {"advertise": {"n9": "127.0.0.1:1"}}}))
    with pytest.raises(ConfigError, match="n9"):
        program.make_node()


async def test_a_retry_of_a_rocketmq_5_client_is_stored_once_and_another_send_is_not_its_retry(
    tmp_path: Path,
) -> None:
    """Clients create an id per `send` call, and a born timestamp and a trace context per try."""
    async with brokers(tmp_path, 1) as cluster:
        born = Timestamp(seconds=1_700_000_000)
        late = Timestamp(seconds=1_700_000_003)
        sends = [
            ({"message_id": "a", "born_timestamp": born, "trace_context": "00-1"}, "OK"),
            ({"message_id": "a", "born_timestamp": late, "trace_context": "00-2"}, "OK, duplicate=true"),
            ({"message_id": "b", "born_timestamp": late}, "OK"),
            ({"message_id": "a", "born_timestamp": late, "tag": "other"}, "OK"),
        ]
        for fields, text in sends:
            one = message(user_properties={"x": "1", "y": "2"}, **fields)  # type: ignore[arg-type]
            request = calls.SendMessageRequest(messages=[one])
            (entry,) = (await call(cluster.members["n1"], "SendMessage", request)).entries
            assert (entry.status.code, entry.status.message) == (pb.Code.OK, text), fields
        program = await cluster.master()
        metrics = {m.name: m for m in BrokerStatus(program).metrics()}
        (sample,) = metrics["broker_duplicate_sends"].samples
        assert (sample.labels, sample.value) == ({"topic": "t"}, 1)
