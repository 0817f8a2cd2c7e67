"""A group of ours takes over from a genuine master under load, by the command that users have."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from broker_adapter.client import (
    Admin,
    ClientOptions,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from broker_adapter.errors import BrokerError
from tests.process.cluster import free_ports

from . import genuine, ours
from .genuine import eventually, pace

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

QUEUES, KEYS = 4, 8
BACKLOG, EVENTS = 400, 2_000
_SEND_MS = 40
_COMMAND_S = 240


class Command:
    """`dledger broker mirror` in a process of its own, and what it says."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "broker_adapter.cli", "broker", "mirror", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            print(f"{time.monotonic() % 1000:.2f}", self.lines[-1])

    async def until_said(self, word: str) -> None:
        async def is_said() -> bool:
            assert self.process.poll() is None, self.lines
            return any(word in line for line in self.lines)

        await eventually(is_said)

    async def ended(self) -> int:
        code = await asyncio.to_thread(self.process.wait, _COMMAND_S)
        self._reader.join()
        return code


@contextmanager
def mirror(*arguments: str) -> Iterator[Command]:
    command = Command(*arguments)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait()


def by_hash(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
    """As SelectMessageQueueByHash."""
    assert isinstance(arg, int)
    return sorted(queues)[arg % len(queues)]


class OrderedLoad:
    """Each key has numbers that grow, in a queue that its hash chooses. What is not acknowledged is sent
    again. `longest_s` without an acknowledgement."""

    def __init__(self, name_servers: str) -> None:
        self._names = name_servers
        self.sent: list[int] = [0] * KEYS
        self.is_over = False
        self.longest_s = 0.0

    async def run(self) -> None:
        options = ClientOptions(poll_name_server_s=1.0)
        async with Producer("makers", self._names, options=options) as producer:
            last = time.monotonic()
            for key in itertools.cycle(range(KEYS)):
                if self.is_over:
                    return
                message = Message("orders", b"%d.%d" % (key, self.sent[key]), keys=[f"k{key}"])
                while True:
                    try:
                        await producer.send(message, selector=by_hash, arg=key)
                        break
                    except BrokerError:
                        await pace(0.05)
                self.sent[key] += 1
                now = time.monotonic()
                self.longest_s, last = max(self.longest_s, now - last), now
                await pace(0.02)


class Taken:
    """What consumers were given: `first` of each body, in their order, and how many came again."""

    def __init__(self) -> None:
        self.first: dict[str, None] = {}
        self.again = 0

    def add(self, body: str) -> None:
        self.again += body in self.first
        self.first.setdefault(body)

    def listen(self, messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            self.add(message.body.decode())
        return ConsumeStatus.CONSUME_SUCCESS


async def prepared(names: str) -> None:
    """Topics at the genuine broker, and messages of before."""
    async with Admin(names) as admin:

        async def is_up() -> bool:
            try:
                return any((await admin.clusters()).values())
            except BrokerError:
                return False

        await eventually(is_up)
        for topic in ("orders", "events", "old"):
            await admin.create_topic(topic, queues=QUEUES)
    async with Producer("makers", names) as producer:
        for number in range(BACKLOG):
            await producer.send(Message("old", b"%d" % number * 400))
        await producer.send(Message("old", b"in two hours", delay_level=18))


async def until_ours_is_known(names: str) -> None:
    async with Admin(names) as admin:

        async def is_known() -> bool:
            brokers = itertools.chain.from_iterable((await admin.clusters()).values())
            return any(one.name == "broker-a" and one.master for one in brokers)

        await eventually(is_known)


async def test_a_group_takes_over_from_a_master_under_load(tmp_path: Path) -> None:
    genuine.require()
    names_port, java_port, _ = free_ports(3)
    names = f"127.0.0.1:{names_port}"
    arguments = ("--from", f"127.0.0.1:{java_port + 1}", "--namesrv", names, "--broker", "broker-a")
    (tmp_path / "client").mkdir()
    java = genuine.java_client("5.5", tmp_path / "client")
    with (
        genuine.name_server(tmp_path / "names", names_port),
        genuine.broker(tmp_path / "java", names, java_port, flushConsumerOffsetInterval=500) as broker,
    ):
        await prepared(names)
        with ours.cluster(tmp_path / "ours", names):
            await until_ours_is_known(names)
            orders, events = OrderedLoad(names), Taken()
            options = ClientOptions(poll_name_server_s=1.0)
            consumer = PushConsumer(
                "auditors",
                names,
                events.listen,
                consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                options=options,
            )
            consumer.subscribe("events", "*")
            with (
                java.begin("orderly", names, "orders", "billing", "*", "1000000") as billing,
                java.begin("send", names, "events", str(EVENTS), str(_SEND_MS)) as sending,
            ):
                billing.read_beside()
                sent = asyncio.create_task(asyncio.to_thread(sending.finish))
                async with consumer:
                    load = asyncio.create_task(orders.run())
                    await taken_over(arguments)
                    broker.send_signal(signal.SIGTERM)
                    await asyncio.to_thread(broker.wait, 60)
                    facts = [line.split() for line in await sent]
                    orders.is_over = True
                    await load
                    acknowledged = {row[1] for row in facts if row[0] == "sent"}
                    wanted = {f"{key}.{number}" for key in range(KEYS) for number in range(orders.sent[key])}

                    def missing() -> tuple[list[str], list[str]]:
                        return sorted(acknowledged - set(events.first)), sorted(wanted - set(bodies(billing)))

                    async def all_came() -> bool:
                        return not any(missing())

                    with suppress(TimeoutError):
                        await eventually(all_came)
                    assert missing() == ([], []), "of events and of orders"
            judge(orders, bodies(billing), events, facts)
            # What the master took too late was seen by consumers that were there still, and by nobody else.
            assert acknowledged <= await stored(names, "events") and wanted <= await stored(names, "orders")
            await check_backlog(names)


async def stored(names: str, topic: str) -> set[str]:
    """The bodies that a topic has."""
    found = set()
    async with PullConsumer("auditors again", names) as consumer:
        for queue in await consumer.queues(topic):
            offset = await consumer.min_offset(queue)
            while (pulled := await consumer.pull(queue, offset)).messages:
                found |= {message.body.decode() for message in pulled.messages}
                offset = pulled.next_offset
    return found


def bodies(client: genuine.ClientProcess) -> list[str]:
    return [words[1] for words in map(str.split, list(client.lines)) if words[0] == "got"]


def judge(orders: OrderedLoad, got: Sequence[str], events: Taken, facts: Sequence[Sequence[str]]) -> None:
    """All is there, in its order; what came twice and what was refused is told."""
    first = list(dict.fromkeys(got))
    for key in range(KEYS):
        numbers = [int(body.split(".")[1]) for body in first if body.startswith(f"{key}.")]
        assert numbers == list(range(orders.sent[key])), key
    refused = [row for row in facts if row[0] == "failed"]
    print(
        f"orders: {len(first)} sent and consumed in order, {len(got) - len(first)} came again, "
        f"{orders.longest_s:.2f} s without an acknowledgement"
    )
    print(
        f"events: {len(facts) - len(refused)} sent and consumed, {events.again} came again, "
        f"{len(refused)} refused: {len(refused) * _SEND_MS / 1000:.1f} s of a Java client"
    )


async def check_backlog(names: str) -> None:
    """What was there before has its queue and its offset."""
    async with Admin(names) as admin:
        counts = [
            await admin.max_offset(MessageQueue("old", "broker-a", queue_id)) for queue_id in range(QUEUES)
        ]
    assert sum(counts) == BACKLOG, counts


async def taken_over(arguments: Sequence[str]) -> None:
    """One mirror is killed, the next one goes on and is ended, and the last one takes over."""
    with mirror(*arguments) as first:
        await first.until_said("following")
        await first.until_said("stored")
        first.process.kill()
        assert await first.ended() == -signal.SIGKILL
    with mirror(*arguments) as second:
        await second.until_said("following")
        second.process.send_signal(signal.SIGTERM)
        assert await second.ended() == 0 and "ended at offset" in second.lines[-1], second.lines
    with mirror(*arguments, "--takeover", "--consume-within", "20") as last:
        assert await last.ended() == 0, last.lines
        print(*last.lines, sep="\n")
        assert any("1 delayed messages" in line for line in last.lines), last.lines
