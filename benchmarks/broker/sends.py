"""Measure single sends through one raw connection to the master: CPU time per message of each process.

The client writes prepared frames and reads only the numbers of the responses, so that the nodes decide.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator
from itertools import count

from benchmarks.broker import brokers
from benchmarks.broker.produce import Cpu
from benchmarks.common import BODY, BenchError, Load, Operation, Row, interleaved, rounds_for, scratch
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import PREFIX, decode

_IN_FLIGHT = 64
_LENGTH = struct.Struct(">i")
_DIGITS = 10
_OPAQUE, _ID = 1_000_000_000, "7F00000100012A139A8B" + "0" * 12


class RawSender(asyncio.Protocol):
    """Sends one message per call of `send`. Java's header, with the id in the place of a counter."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._buffer = bytearray()
        fields = {
            "a": "bench", "b": brokers.TOPIC, "c": "TBW102", "d": "4", "e": "QUEUE", "f": "0",
            "g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\x01{_ID}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
            "j": "0", "k": "false", "m": "false", "n": brokers.BROKER,
        }  # fmt: skip
        header = {
            "code": int(RequestCode.SEND_MESSAGE_V2), "extFields": fields, "flag": 0, "language": "JAVA",
            "opaque": _OPAQUE, "serializeTypeCurrentRPC": "JSON", "version": 479,
        }  # fmt: skip
        text = json.dumps(header, separators=(",", ":"))
        before, after = text.split(str(_OPAQUE))
        first, last = before.split(_ID)
        front, back = first.split("QUEUE")
        self._parts = [part.encode() for part in (front, back, last, after)]
        size = len(text) - len("QUEUE") + 1
        self._prefix = PREFIX.pack(_LENGTH.size + size + len(BODY), size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    async def send(self) -> int:
        number = next(self._numbers)
        opaque = _OPAQUE + number
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = answer
        front, back, last, after = self._parts
        message_id = b"%s%012X" % (_ID[:20].encode(), number)
        queue = b"%d" % (number % brokers.QUEUES)
        self._transport.write(
            b"".join((self._prefix, front, queue, back, message_id, last, b"%d" % opaque, after, BODY))
        )
        return await answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for frame in self._frames():
            answer = decode(frame)
            if answer.code:
                raise BenchError(f"a send failed: {answer.code} {answer.remark}")
            self._waiting.pop(answer.opaque).set_result(1)

    def _frames(self) -> Iterator[bytes]:
        at, buffer = 0, self._buffer
        while len(buffer) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]
            if end > len(buffer):
                break
            yield bytes(buffer[at + _LENGTH.size : end])
            at = end
        del buffer[:at]


async def run(seconds: float) -> list[Row]:
    """Run the benchmark: 64 sends in flight, and one."""
    with scratch("broker-sends") as folder:
        async with brokers.running(folder) as system:
            address = next(
                node.remoting_address
                for node in system.cluster.plan.nodes
                if node.node_id == system.master_id
            )
            host, _, port = address.rpartition(":")
            _, sender = await asyncio.get_running_loop().create_connection(RawSender, host, int(port))
            operations: dict[str, tuple[Operation, int]] = {
                "64 in flight": (sender.send, _IN_FLIGHT),
                "one in flight": (sender.send, 1),
            }
            cpu = {name: Cpu(system) for name in operations}
            rounds = await interleaved(operations, seconds, rounds_for(seconds), cpu)
    return [
        _row(name, Load.joined(loads), cpu[name].used, system.master_id) for name, loads in rounds.items()
    ]


def _row(name: str, load: Load, cpu: dict[str, float], master: str) -> Row:
    each = {who: 1e6 * used / load.entries for who, used in sorted(cpu.items())}
    shown = ", ".join(f"{'master' if who == master else who} {used:.0f}" for who, used in each.items())
    return Row(
        f"single sends, {name}",
        f"{load.rate:,.0f}/s, p50 {load.latency_ms(0.5):.2f} ms",
        detail=f"CPU µs per message: {shown}",
        values={"rate": load.rate, "p50_ms": load.latency_ms(0.5), "cpu_us": each},
    )
