"""Measure the throughput of one RocketMQ 5 client process, relative to a unary echo.

The client either keeps 64 sends of 1 KiB in flight, one gRPC call each, or receives messages and acknowledges
each of them. The rows include the CPU time per process. The calls are the ones that released clients make,
and they use the nodes as routes direct clients: all nodes in turn, only the master, or only one follower. The
client is a bare gRPC channel, so the code of a client library is not measured.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count, cycle
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from benchmarks import ours, yardsticks
from benchmarks.broker import brokers
from benchmarks.common import BODY, BenchError, Cpu, Load, Operation, Row, interleaved, rounds_for, scratch
from broker_adapter.endpoints.v5.messages.methods import METHODS, SERVICE_NAME
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.transport.channels import open_channel

LEAST_RATE = 3000
#: Upper bound for received messages per second; determines how many messages are produced first.
_MOST_RECEIVED = 6000
#: Nodes that receive the calls.
_MASTER, _SPREAD, _FOLLOWER = "all at the master", "in turn at all nodes", "all at one follower"
#: The load of this project's client of the remoting protocol, whose own code is included in the measurement.
_REMOTING = "by the remoting client, in turn at all nodes"
_WAYS = 3
_ECHO = "echo"
#: Default batch size of released clients. A consumer sends the acks of a batch concurrently, as the listener
#: threads of released clients do.
_RECEIVE_BATCH = 32
_CONSUMERS = 4
_GROUP = "BenchGroup"
_HEADERS = (
    ("x-mq-client-id", "bench@1@0@1"),
    ("x-mq-language", "PYTHON"),
    ("x-mq-client-version", "5.1.2"),
    ("x-mq-protocol", "v2"),
    ("x-mq-date-time", "20260101T000000Z"),
)
_TIMEOUT_S = 30.0
#: Methods of one node, by name.
Calls = dict[str, Any]
_APPENDS = re.compile(r"^broker_delivery_appends_total (\S+)$", re.MULTILINE)


class Spent(Cpu):
    """Measures CPU time, and the log appends that the master made for client calls."""

    def __init__(self, system: brokers.Brokers) -> None:
        super().__init__(system)
        self._url = f"{system.cluster.http_url(system.master_id)}/metrics"
        self._appends_before = 0.0
        self.appends = 0.0

    def begin(self) -> None:
        self._appends_before = self._appends()
        super().begin()

    def end(self) -> None:
        super().end()
        self.appends += self._appends() - self._appends_before

    def _appends(self) -> float:
        with urllib.request.urlopen(self._url) as answer:
            found = _APPENDS.search(answer.read().decode())
        if found is None:
            raise BenchError(f"{self._url} has no metric broker_delivery_appends_total")
        return float(found[1])


class Client:
    """Client that uses the nodes of `channels` in turn. It acknowledges a message at the node
    that sent it.
    """

    def __init__(
        self,
        channels: Sequence[Any],
        topic: str = brokers.TOPIC,
        body: bytes = BODY,
        *,
        with_keys: bool = False,
    ) -> None:
        self._nodes = cycle([_calls_of(channel) for channel in channels])
        self._numbers = count()
        self._topic = pb.Resource(name=topic)
        self._body = body
        self._with_keys = with_keys
        self._group = pb.Resource(name=_GROUP)
        self._owner = secrets.token_hex(4)

    async def send(self) -> int:
        now = int(time.time())
        number = next(self._numbers)
        system = pb.SystemProperties(
            tag=brokers.TAG,
            message_id=f"01{self._owner}{number:024X}",
            body_digest=pb.Digest(type=pb.CRC32, checksum="0"),
            body_encoding=pb.IDENTITY,
            message_type=pb.NORMAL,
            born_host="localhost",
            keys=[f"order-{number:012X}"] if self._with_keys else [],
        )
        system.born_timestamp.seconds = now
        message = pb.Message(topic=self._topic, system_properties=system, body=self._body)
        request = calls.SendMessageRequest(messages=[message])
        answer = await _answered(next(self._nodes), "SendMessage", request)
        return len(answer.entries)

    async def receive_and_ack(self) -> int:
        """Receive a batch, and acknowledge its messages concurrently, one call each."""
        request = calls.ReceiveMessageRequest(
            group=self._group,
            message_queue=pb.MessageQueue(topic=self._topic),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=_RECEIVE_BATCH,
        )
        request.invisible_duration.seconds = 30
        request.long_polling_timeout.seconds = 5
        node = next(self._nodes)
        call = node["ReceiveMessage"](request, metadata=_HEADERS, timeout=_TIMEOUT_S)
        found = [answer.message async for answer in call if answer.HasField("message")]
        await asyncio.gather(*(self._ack(node, message) for message in found))
        return len(found)

    async def _ack(self, node: Calls, message: pb.Message) -> None:
        system = message.system_properties
        entry = calls.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        request = calls.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry])
        await _answered(node, "AckMessage", request)


def _calls_of(channel: Any) -> Calls:
    return {
        name: (channel.unary_stream if method.streams_answers else channel.unary_unary)(
            f"/{SERVICE_NAME}/{name}",
            request_serializer=_serialized,
            response_deserializer=method.answer.FromString,
        )
        for name, method in METHODS.items()
    }


async def _answered(node: Calls, method: str, request: Message) -> Any:
    answer = await node[method](request, metadata=_HEADERS, timeout=_TIMEOUT_S)
    if answer.status.code != pb.OK:
        raise BenchError(f"{method} failed with {answer.status.code} {answer.status.message}")
    return answer


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def send(seconds: float) -> AsyncGenerator[Row]:
    async def ready(system: brokers.Brokers, client: Client) -> None:
        await client.send()

    figure = f"{yardsticks.UNARY_IN_FLIGHT} concurrent SendMessage of 1 KiB"
    remoting = {_REMOTING: (lambda system: system.single, yardsticks.UNARY_IN_FLIGHT)}
    return _rows(figure, "clients-send", seconds, ready, _sending, remoting)


def receive(seconds: float) -> AsyncGenerator[Row]:
    async def ready(system: brokers.Brokers, client: Client) -> None:
        """Produce more messages than the benchmark can receive, with tags and ids as clients set them."""
        for _ in range(int(_MOST_RECEIVED * _WAYS * seconds) // (ours.BATCH * brokers.QUEUES)):
            await asyncio.gather(*[system.keyed_bulk() for _ in range(brokers.QUEUES)])
        await asyncio.to_thread(system.wait_in_step)

    figure = f"{_CONSUMERS} receives of {_RECEIVE_BATCH}, each message acknowledged alone"
    return _rows(figure, "clients-receive", seconds, ready, _receiving)


def _sending(client: Client) -> tuple[Operation, int]:
    return client.send, yardsticks.UNARY_IN_FLIGHT


def _receiving(client: Client) -> tuple[Operation, int]:
    return client.receive_and_ack, _CONSUMERS


async def _rows(
    figure: str,
    folder_name: str,
    seconds: float,
    ready: Callable[[brokers.Brokers, Client], Awaitable[None]],
    load_of: Callable[[Client], tuple[Operation, int]],
    others: Mapping[str, tuple[Callable[[brokers.Brokers], Operation], int]] = MappingProxyType({}),
) -> AsyncGenerator[Row]:
    """Measure one row per choice of nodes, interleaved with each other and the echo. `others`: loads that do
    not use gRPC.
    """
    with scratch(folder_name) as folder:
        async with (
            brokers.running(folder) as system,
            yardsticks.echo() as echo,
            AsyncExitStack() as stack,
        ):
            channels = {
                node.node_id: await stack.enter_async_context(open_channel(node.address))
                for node in system.cluster.plan.nodes
            }
            master = channels[system.master_id]
            follower = next(channel for channel in channels.values() if channel is not master)
            ways = {_MASTER: [master], _SPREAD: list(channels.values()), _FOLLOWER: [follower]}
            await ready(system, Client([master]))
            operations = {way: load_of(Client(nodes)) for way, nodes in ways.items()}
            operations |= {way: (operation(system), at_once) for way, (operation, at_once) in others.items()}
            operations[_ECHO] = (yardsticks.unary_echo(echo), yardsticks.UNARY_IN_FLIGHT)
            spent = {name: Spent(system) for name in operations}
            rounds = await interleaved(operations, seconds, rounds_for(seconds), spent)
    loads = {name: Load.joined(one) for name, one in rounds.items()}
    for way in (*ways, *others):
        yield _row(f"{figure}, {way}", way, loads, spent, system.master_id)


def _row(figure: str, way: str, loads: Mapping[str, Load], spent: Mapping[str, Spent], master_id: str) -> Row:
    load, bare = loads[way], loads[_ECHO]
    used = {who: 1e6 * seconds / load.entries for who, seconds in spent[way].used.items()}
    busiest = max(seconds / load.seconds for seconds in spent[way].used.values())
    # The nodes are idle while the echo is measured. This share of the CPU is independent of the load, so at a
    # low rate it dominates the CPU time per message.
    idle = max(seconds / bare.seconds for who, seconds in spent[_ECHO].used.items() if who != "client")
    per_append = load.entries / max(1.0, spent[way].appends)
    parts = ", ".join(f"{who} {us:.0f}" for who, us in used.items())
    return Row(
        figure,
        f"{load.rate:,.0f}/s",
        f">= {LEAST_RATE:,}/s",
        load.rate >= LEAST_RATE,
        f"{load.rate / bare.rate:.2f} of the echo's {bare.rate:,.0f}/s; p50 {load.latency_ms(0.5):.1f} ms; "
        f"{per_append:.0f} messages an append; "
        f"µs of CPU per message: {parts} (master {master_id}), {sum(used.values()):.0f} in all, "
        f"the busiest process {100 * busiest:.0f} % of a core; "
        f"a node without load uses {100 * idle:.0f} % of a core",
        {
            "rate": load.rate,
            "echo_rate": bare.rate,
            "cpu_us": used,
            "busiest_share": busiest,
            "per_append": per_append,
            "idle_share": idle,
            "master": master_id,
        },
    )
