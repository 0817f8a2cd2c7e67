"""Streams of frames at the remoting ports of a broker node and a NameServer, and what may come of them.

A frame that is a request is answered with a code, unless it is one-way; bytes that are no frame close the
connection; the server stays up and within its memory, logs no stack trace, and good clients are served.
`python -m tests.fuzz.frame_streams --frames 1000000` says how far it came.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click

from broker_adapter.errors import FrameRefused, ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand, encode
from broker_adapter.remoting.connection import FrameReader
from tests.broker_adapter.process.processes import BROKER, SMALL
from tests.broker_adapter.v4.asker import asking, send_fields
from tests.fuzz.frames import OF_BROKERS, OF_NAME_SERVERS, frame
from tests.fuzz.registry import CORPUS
from tests.fuzz.servers import MEMORY_BYTES, NameServer, Node, Server
from tests.process.cluster import free_ports

#: Frames of one connection, behind which a good request goes.
STREAM = 100
_WITHIN_S = 30.0
_PROBE = 0x7FFF0000
#: A node gives a send 3 s, as clients do: too little on a machine that has too much to do.
_TRIES = 5
#: How often memory, log and good clients are looked at (streams).
_LOOK_EVERY = 50
#: What waits for messages is not answered within the time.
_WAITING = {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
}


class BrokerPort(Node):
    """A broker alone, so that it is master."""

    name = "remoting-broker"
    codes = tuple(OF_BROKERS)

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.remoting = f"127.0.0.1:{port}"
        own = {"remoting": {"listen": self.remoting, "send_listen": "127.0.0.1:0"}}
        self.settings = {"program": {"factory": BROKER, "settings": {**SMALL, **own}}}  # type: ignore[misc]
        super().__init__(folder)

    def _is_ready(self, seen: dict[str, Any]) -> bool:
        return "n1" in seen and bool(seen["n1"].owner.get("writable"))

    async def start(self) -> None:
        await super().start()
        async with asking(self.remoting) as asker:
            for topic in ("T", "U"):
                await asker.get(
                    RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, readQueueNums=2, writeQueueNums=2
                )
            for group in ("g", "h"):
                body = json.dumps({"groupName": group}).encode()
                await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

    async def is_served(self) -> str:
        """A send, on a topic that is put first, as others may delete it; and its message by its offset."""
        async with asking(self.remoting) as asker:
            await asker.get(
                RequestCode.UPDATE_AND_CREATE_TOPIC, topic="good", readQueueNums=1, writeQueueNums=1
            )
            fields = send_fields("good", 0)
            for _ in range(_TRIES):
                sent = await asker.ask(RequestCode.SEND_MESSAGE_V2, b"good", **fields)
                if sent.code == ResponseCode.SUCCESS:
                    break
            else:
                return f"a send is refused: {sent}"
            queue = {
                "topic": "good",
                "queueId": 0,
                "queueOffset": sent.fields["queueOffset"],
                "maxMsgNums": 1,
            }
            # Queues are built behind the answer to a send: the pull waits for that.
            wanted = {"sysFlag": 6, "subscription": "*", "suspendTimeoutMillis": 10_000, "commitOffset": 0}
            pulled = await asker.ask(RequestCode.PULL_MESSAGE, consumerGroup="good", **queue, **wanted)
            return "" if b"good" in pulled.body else f"a message is not pulled: {pulled}"


class NameServerPort(NameServer):
    name = "remoting-namesrv"
    codes = tuple(OF_NAME_SERVERS)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.remoting = self.address

    async def is_served(self) -> str:
        async with asking(self.remoting) as asker:
            found = await asker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
            return "" if found.code == ResponseCode.SUCCESS else f"no clusters: {found}"


PORTS: tuple[type[BrokerPort | NameServerPort], ...] = (BrokerPort, NameServerPort)


class Wanted(NamedTuple):
    """What a stream of bytes has to lead to."""

    answers: Counter[int]  # opaque -> requests that are answered in time
    is_refused: bool  # the connection is closed
    is_complete: bool  # a request behind it is read


def wanted_of(data: bytes) -> Wanted:
    reader, answers = FrameReader(), Counter[int]()
    reader.feed(data)
    try:
        while (command := reader.next()) is not None:
            if not (command.is_answer or command.is_oneway or command.code in _WAITING):
                answers[command.opaque] += 1
    except FrameRefused:
        return Wanted(answers, True, False)
    return Wanted(answers, False, not reader.buffered)


class Streams:
    """`run` sends streams to each server and raises AssertionError for what must not be."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.largest: dict[str, int] = {}
        self._rng = Random(seed)
        self._folder = folder
        self._kept = tuple(path.read_bytes() for path in sorted((CORPUS / "remoting-frame").iterdir()))

    async def run(self, port: type[BrokerPort | NameServerPort], frames: int) -> None:
        server = port(self._folder)
        await server.start()
        try:
            for number in range(-(-frames // STREAM)):
                await self._stream(server)
                if number % _LOOK_EVERY == 0:
                    await self._look(server)
            await self._look(server)
            assert await server.stop() == 0
        finally:
            await server.kill()

    async def _stream(self, server: BrokerPort | NameServerPort) -> None:
        rng = self._rng
        pieces = [frame(rng, opaque, self._kept, server.codes) for opaque in range(STREAM)]
        # What is behind bytes that are no frame is never read, and answers before them may be lost: so those
        # are few, and come last.
        good = [piece for piece in pieces if wanted_of(piece).is_complete]
        bad = [piece for piece in pieces if piece not in good][: rng.randrange(4) == 0]
        self.counts["frames"] += len(good) + len(bad)
        data = b"".join(good + bad)
        wanted = wanted_of(data)
        try:
            await self._exchange(server, data, wanted)
        except AssertionError:
            path = self._folder / f"stream-{self.counts['frames']}"
            path.write_bytes(data)
            raise

    async def _exchange(self, server: BrokerPort | NameServerPort, data: bytes, wanted: Wanted) -> None:
        host, _, port = server.remoting.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        probe = encode(
            RemotingCommand(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}, opaque=_PROBE)
        )
        try:
            writer.write(data + (probe if wanted.is_complete else b""))
            answers, is_closed = await self._answers(reader, wanted)
        finally:
            writer.transport.abort()
        missing = wanted.answers - answers
        if wanted.is_refused:
            assert is_closed, "the connection stays open behind bytes that are no frame"
            self.counts["closed: no frame"] += 1
        elif is_closed:
            self.counts["closed: else"] += 1
        else:
            assert not missing, f"no answer within {_WITHIN_S:g} s to {dict(missing)}"
            self.counts["incomplete at the end"] += not wanted.is_complete

    async def _answers(self, reader: asyncio.StreamReader, wanted: Wanted) -> tuple[Counter[int], bool]:
        """By opaque, until all that is wanted has come, or the connection has ended; True: it has."""
        frames, seen, probed = FrameReader(), Counter[int](), not wanted.is_complete
        try:
            async with asyncio.timeout(_WITHIN_S):
                while wanted.is_refused or not probed or wanted.answers - seen:
                    data = await reader.read(1 << 16)
                    if not data:
                        return seen, True
                    frames.feed(data)
                    while (command := frames.next()) is not None:
                        if command.is_answer:
                            probed = probed or command.opaque == _PROBE
                            seen[command.opaque] += 1
                            self.counts[f"code {command.code}"] += 1
        except ConnectionError:
            return seen, True
        except TimeoutError:
            pass
        assert probed, f"no answer within {_WITHIN_S:g} s to the request behind the stream"
        return seen, False

    async def _look(self, server: Server) -> None:
        assert server.is_up(), server.new_log()[-4000:]
        assert "Traceback" not in (logged := server.new_log()), logged[-4000:]
        size = server.memory_bytes()
        self.largest[server.name] = max(size, self.largest.get(server.name, 0))
        assert size < MEMORY_BYTES, f"{size >> 20} MiB of memory"
        assert not (problem := await server.is_served()), f"a good client is not served: {problem}"


@click.command()
@click.option("--frames", default=1_000_000, help="Of all servers together.")
@click.option("--seed", default=1)
def main(frames: int, seed: int) -> None:
    """Send frames and say how many were sent, and what came of them."""
    folder = Path(tempfile.mkdtemp(prefix="dledger-frames-"))
    streams = Streams(seed, folder)
    try:
        for port in PORTS:
            asyncio.run(streams.run(port, frames // len(PORTS)))
    finally:
        sizes = {name: f"{size >> 20} MiB" for name, size in streams.largest.items()}
        print(f"seed {seed}, {folder}: {dict(streams.counts)}; largest: {sizes}", flush=True)


if __name__ == "__main__":
    main()
