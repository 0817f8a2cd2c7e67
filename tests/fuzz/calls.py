"""Calls of every method of every service, made from descriptors, valid or nearly so, and what may come of it.

A call has to end within 2 s of the server's CPU time, and within 20 s however busy the machine is, unless it
waits for something by its nature: that is cut. It ends with an answer, or with a gRPC status that says whose
fault it is. Never UNKNOWN or INTERNAL, never an answer that says "internal error", never a stack trace in the
server's log; and the server stays up, within its memory.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from broker_adapter.errors import Status
from broker_adapter.v1 import forward_pb2
from broker_adapter.v2 import definition_pb2, service_pb2
from dledger.errors import Code
from dledger.infra.transport.channels import open_channel
from dledger.v1 import admin_pb2, log_pb2, peer_pb2
from tests.fuzz import http_calls
from tests.fuzz.messages import Known, filled
from tests.fuzz.mutation import mutated
from tests.fuzz.servers import MEMORY_BYTES, Server
from tests.fuzz.targets_log import KNOWN as OF_MEMBERS
from tests.process.cluster import CLUSTER, GROUP

CPU_LIMIT_S = 2.0
WALL_LIMIT_S = 20.0
#: When a call that waits by its nature is ended.
CUT_S = 0.5
#: Of a call: the status port lets a connection be without a whole head for 10 s.
_HTTP_S = 2 * WALL_LIMIT_S
_SHARE_OF_HTTP = 0.1
_MOST_ANSWERS = 50
_MOST_ENTRIES = 10_000

#: Whose errors these are is told by them: the caller's, or the caller has to wait.
_BUGS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS}
#: A stream that the server has ended while gRPC was about to send on it, as seen by gRPC's Python client.
_BY_OWN_SIDE = "Internal error from Core"
_CUT = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}

_LOG: Known = {
    "session": (),
    "open_session": (False, False, True),
    "follow": (False,),
    "group": (GROUP,),
    "bodies": (b"x", b"body" * 100),
    "session_id": (0, 1, 5),
    "seq": (1, 2, 3),
    "timeout_ms": (100, 1000),
    "from_index": (-1, 0, 5),
    "count": (1, 10),
    "before_index": (-1, 1),
    "before_age_ms": (1000,),
    "bytes_per_second": (1 << 20,),
    "to": ("n1", "n2"),
}
_CLIENT: Known = {
    **dict.fromkeys(("lite_topic", "delivery_timestamp", "dead_letter_queue", "receipt_handle"), ()),
    **dict.fromkeys(("message_group", "priority", "body_digest", "store_host", "lite_topic_set"), ()),
    "invisible_duration.seconds": (2, 60),
    "long_polling_timeout.seconds": (0,),
    "resource_namespace": ("",),
    "topic.name": ("T", "T", "T", "U"),
    "topics.name": ("T", "U"),
    "group.name": ("g", "g", "g", "h"),
    "name": ("T", "broker-a"),
    "id": (0, 0, 0, 1),
    "scheme": (1,),
    "host": ("127.0.0.1",),
    "port": (8081,),
    "message_id": ("01" + "0A" * 16, "01" + "0B" * 16),
    "message_type": (1, 1, 1, 1, 4),
    "body_encoding": (1,),
    "tag": ("a",),
    "keys": ("k",),
    "body": (b"x", b"body" * 100),
    "seconds": (0, 1, 2, 1_700_000_000, 4_000_000_000),
    "nanos": (0, 5),
    "batch_size": (1, 32),
    "type": (1, 2),
    "expression": ("*", "*", "*", "a || b", "a = 'x' AND b > 1"),
    "offset": (0, 1),
    "client_type": (1, 2, 3),
    "attempt_id": ("attempt",),
    "delivery_attempt": (1,),
    "max_delivery_attempts": (16,),
    "resolution": (1, 2),
    "source": (1, 2),
    "query_offset_policy": (0, 1, 2),
    "receive_batch_size": (32,),
    "max_attempts": (16,),
    "language": (1, 6),
    "permission": (4,),
    "checksum": ("00000000",),
}
_OF_MEMBERS: Known = {
    **OF_MEMBERS,
    "cluster_id": (CLUSTER,),
    "group": (GROUP,),
    "members": (["n1", "n2", "n3"],),
    "term": (3, 4, 5),
    "code": (0,),
    "method": ("SendMessage", "ReceiveMessage", "QueryRoute"),
    "client_id": ("client-1",),
    "node_id": ("n2", "n3"),
    "id": (1, 2, 3),
    "timeout_ms": (1000,),
    "max_bytes": (1 << 20,),
}

HEADERS = (
    ("x-mq-client-id", "client-1"),
    ("x-mq-language", "JAVA"),
    ("x-mq-client-version", "5.0"),
)
_ODD_HEADERS = (("x-mq-client-id", ""), ("x-mq-namespace", "x" * 300), ("x-mq-client-id", "c" * 5000))

#: Server -> services that it is called with, and what is known there.
SERVICES: dict[str, tuple[tuple[Any, str, Known], ...]] = {
    "log": ((log_pb2, "LogService", _LOG), (admin_pb2, "AdminService", _LOG)),
    "broker": (
        (service_pb2, "MessagingService", _CLIENT),
        (admin_pb2, "AdminService", _LOG),
    ),
    "member": (
        (peer_pb2, "PeerService", _OF_MEMBERS),
        (forward_pb2, "ForwardService", _OF_MEMBERS),
        (log_pb2, "LogService", _LOG),
    ),
    "namesrv": (),  # its status page alone
}
#: Methods that end when their caller wants, or when something comes.
WAITING = frozenset(
    {
        *("ReadStream", "ReceiveMessage", "PullMessage"),
        *("AppendStream", "Push", "Forward", "Telemetry", "Scrub", "Backup"),
    }
)


@dataclass(frozen=True)
class Call:
    """`requests`: more than one only where the method takes a stream."""

    server: str
    method: str
    requests: tuple[bytes, ...]
    metadata: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> str:
        requests = [base64.b64encode(one).decode() for one in self.requests]
        return json.dumps([self.server, self.method, requests, self.metadata])

    @classmethod
    def from_json(cls, text: str) -> Call:
        server, method, requests, metadata = json.loads(text)
        return cls(server, method, tuple(map(base64.b64decode, requests)), tuple(map(tuple, metadata)))


def methods_of(server: str) -> list[tuple[MethodDescriptor, Known]]:
    return [
        (method, known)
        for module, service, known in SERVICES[server]
        for method in module.DESCRIPTOR.services_by_name[service].methods
    ]


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


_BY_PATH = {path_of(method): method for server in SERVICES for method, _ in methods_of(server)}


class Caller:
    """Makes calls to one server, and learns handles and ids from its answers."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.accepted: Counter[str] = Counter()
        self._rng = Random(f"{seed}/{server.name}")
        self._methods = methods_of(server.name)
        self._learned: dict[str, list[str]] = defaultdict(list)
        self._recorded: dict[str, list[bytes]] = defaultdict(list)

    def next_call(self) -> Call:
        rng = self._rng
        if not self._methods or rng.random() < _SHARE_OF_HTTP:
            return Call(
                self.server.name, http_calls.METHOD, (http_calls.request(rng, self.server.http_address),)
            )
        method, known = rng.choice(self._methods)
        path = path_of(method)
        count = rng.choice((1, 1, 2, 4)) if method.client_streaming else 1
        requests = tuple(self._request(method, known) for _ in range(count))
        metadata = HEADERS if rng.random() < 0.9 else (*HEADERS[1:], rng.choice(_ODD_HEADERS))
        return Call(self.server.name, path, requests, metadata)

    def _request(self, method: MethodDescriptor, known: Known) -> bytes:
        rng = self._rng
        recorded = self._recorded[path_of(method)]
        if recorded and rng.random() < 0.25:
            return mutated(rng.choice(recorded), rng, text=False)
        made: Message = GetMessageClass(method.input_type)()
        wild = rng.choice((0.0, 0.0, 0.05, 0.05, 0.3))
        known = {**known, **{name: values for name, values in self._learned.items() if values}}
        data = filled(made, rng, known, wild=wild, most=_MOST_ENTRIES).SerializeToString()
        return mutated(data, rng, text=False) if rng.random() < 0.15 else data

    async def make(self, call: Call) -> str:
        """What is wrong with how the server took it; "" if nothing."""
        before_s = self.server.cpu_s()
        if call.method == http_calls.METHOD:
            request = call.requests[0]
            problem = await http_calls.problem_of(self.server.http_address, request, _HTTP_S)
            return problem or self._state_of_server(before_s)
        waits = call.method.rpartition("/")[2] in WAITING
        try:
            code, details, answers = await self._sent(call, CUT_S if waits else WALL_LIMIT_S)
        except TimeoutError:
            return "the call does not end when its deadline is over"
        if problem := self._state_of_server(before_s):
            return problem
        if code in _BUGS and details != _BY_OWN_SIDE:
            return f"gRPC status {code}: {details}"
        if code in _CUT and not waits:
            return f"no answer within {WALL_LIMIT_S:g} s"
        return self._judge(call, answers)

    def _state_of_server(self, before_s: float) -> str:
        if not self.server.is_up():
            return f"the server has ended:\n{self.server.new_log()[-4000:]}"
        logged = self.server.new_log()
        if "Traceback" in logged:
            return f"a stack trace in the log:\n{logged[-4000:]}"
        if (spent_s := self.server.cpu_s() - before_s) > CPU_LIMIT_S:
            return f"{spent_s:.1f} s of the server's CPU time"
        if (used := self.server.memory_bytes()) > MEMORY_BYTES:
            return f"the server uses {used >> 20} MiB, more than {MEMORY_BYTES >> 20}"
        return ""

    async def _sent(self, call: Call, seconds: float) -> tuple[grpc.StatusCode, str, list[bytes]]:
        method = _BY_PATH[call.method]
        answers: list[bytes] = []
        async with asyncio.timeout(seconds + WALL_LIMIT_S), open_channel(self.server.address) as channel:
            kind = ("stream" if method.client_streaming else "unary") + (
                "_stream" if method.server_streaming else "_unary"
            )
            opened = getattr(channel, kind)(call.method)
            given: Any = iter(call.requests) if method.client_streaming else call.requests[0]
            made = opened(
                _sending(given) if method.client_streaming else given, timeout=seconds, metadata=call.metadata
            )
            try:
                if method.server_streaming:
                    async for answer in made:
                        answers.append(answer)
                        if len(answers) >= _MOST_ANSWERS:
                            made.cancel()
                            break
                else:
                    answers.append(await made)
            except grpc.RpcError as error:
                return error.code(), error.details() or "", answers
            return grpc.StatusCode.OK, "", answers

    def _judge(self, call: Call, answers: Sequence[bytes]) -> str:
        method = _BY_PATH[call.method]
        for data in answers:
            try:
                answer = GetMessageClass(method.output_type).FromString(data)
            except DecodeError:
                return "an answer that is no message of the method"
            if problem := _bad_number(answer):
                return f"{problem}: {str(answer)[:500]}"
            if _is_accepted(answer):  # others give back what they were asked with
                self._learn(answer)
                self.accepted[call.method] += 1
                recorded = self._recorded[call.method]
                if len(recorded) < 20:
                    recorded.extend(one for one in call.requests if len(one) < 10_000)
        return ""

    def _learn(self, answer: Message) -> None:
        for name, value in _texts(answer):
            if name.endswith(("_handle", "_id", "_ids")) and value:
                learned = self._learned[name.removesuffix("s") if name == "offset_ids" else name]
                learned.append(value)
                del learned[:-20]


async def _sending(requests: Iterable[bytes]) -> Any:
    for request in requests:
        yield request


def _texts(message: Message) -> Iterable[tuple[str, str]]:
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for one in value if field.is_repeated else (value,):
                yield from _texts(one)
        elif isinstance(value, str):
            yield field.name, value


def _statuses(message: Message) -> Iterable[Message]:
    for field, value in message.ListFields():
        if field.name in ("status", "refusal"):
            yield value
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for one in value if field.is_repeated else (value,):
                yield from _statuses(one)


def _bad_number(answer: Message) -> str:
    """Why the number in an answer is none that is documented."""
    for status in _statuses(answer):
        code = getattr(status, "code", 0)
        if isinstance(status, definition_pb2.Status):
            if code in (definition_pb2.INTERNAL_ERROR, definition_pb2.INTERNAL_SERVER_ERROR):
                return "an internal error"
            known: Iterable[int] = definition_pb2.Code.values()
        else:
            known = {0, *map(int, Code), *map(int, Status)}
            if code == int(Code.INTERNAL_ERROR):
                return "an internal error"
        if code not in known:
            return f"the number {code} is none that is known"
    return ""


def _is_accepted(answer: Message) -> bool:
    return all(getattr(one, "code", 0) in (0, 200, 20_000, 30_000) for one in _statuses(answer))


def never_accepted(caller: Caller) -> list[str]:
    """The methods of its server that have answered no call with success."""
    names = (path_of(method) for method, _ in methods_of(caller.server.name))
    return [name.rpartition("/")[2] for name in names if not caller.accepted[name]]
