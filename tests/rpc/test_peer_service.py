"""PeerService: every call, whatever it asks for, is of a member and with that member's certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from dledger.core.messages import Message, PushMessage
from dledger.errors import Code
from dledger.infra.transport.peer_names import PeerNames
from dledger.rpc.envelope import PeerClaims, PeerIdentity
from dledger.rpc.peer_service import PeerService
from dledger.rpc.ports import FetchedFrames, ImageChunk, ImageQuestion, PushPeer
from dledger.v1 import peer_pb2 as pb

MEMBERS = {"n1": "host1:1", "n2": "host2:1", "n3": "host3:1"}
HERE = PeerIdentity("c", "g", "n2", tuple(MEMBERS), 1)
SENDER = PeerIdentity("c", "g", "n1", tuple(MEMBERS), 7)

METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["PeerService"].methods]
REQUESTS: dict[str, Callable[[pb.Envelope], Any]] = {
    "Vote": lambda e: pb.VoteRequest(envelope=e, term=1),
    "Heartbeat": lambda e: pb.HeartbeatRequest(envelope=e, term=1),
    "TakeLeadership": lambda e: pb.TakeLeadershipRequest(envelope=e, term=1),
    "Position": lambda e: pb.PositionRequest(envelope=e),
    "Fetch": lambda e: pb.FetchRequest(envelope=e, first_index=0, last_index=3, max_bytes=100),
    "Image": lambda e: pb.ImageRequest(envelope=e, least_index=5),
    "Push": lambda e: pb.PushRequest(envelope=e, stream_id=1),
}
#: The name of the servicer's method where it is not that of the call in lower case.
PYTHON_NAMES = {"TakeLeadership": "take_leadership"}


class Port:
    """Notes whatever gets through."""

    identity = HERE

    def __init__(self) -> None:
        self.reached: list[object] = []

    def check_claims(self, peer: str, claims: PeerClaims) -> None: ...

    async def request(self, peer: str, message: Message) -> Message:
        self.reached.append(message)
        raise TimeoutError

    async def fetch(
        self, first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool
    ) -> FetchedFrames:
        self.reached.append((first_index, last_index))
        return FetchedFrames(first_index, last_index, b"entries")

    async def image(self, peer: str, question: ImageQuestion) -> ImageChunk:
        self.reached.append((peer, question))
        return ImageChunk(b"manifest", b"data")

    def push_opened(self, stream: PushPeer) -> None:
        self.reached.append(stream)

    def push_received(self, stream: PushPeer, message: PushMessage, payload: object) -> None: ...
    def push_ended(self, stream: PushPeer, *, said_goodbye: bool) -> None: ...


class Context:
    """A call whose connection has a certificate with these names."""

    def __init__(self, requests: Sequence[object], names: Sequence[str]) -> None:
        self._requests = list(requests)
        self._names = names
        self.written: list[Any] = []

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return {"x509_subject_alternative_name": [name.encode() for name in self._names]}

    def add_done_callback(self, callback: object) -> None: ...

    async def read(self) -> object:
        return self._requests.pop(0) if self._requests else grpc.aio.EOF

    async def write(self, response: object) -> None:
        self.written.append(response)


async def refusal_of(method: str, envelope: pb.Envelope, names: Sequence[str]) -> tuple[int, list[object]]:
    """The number of the first answer, and what reached the node."""
    port = Port()
    service = PeerService(port, PeerNames(MEMBERS, {}))
    request = REQUESTS[method](envelope)
    context = Context([request], names)
    answer = await getattr(service, PYTHON_NAMES.get(method, method.lower()))(request, context)
    await asyncio.sleep(0)
    first = context.written[0] if answer is None else answer
    return first.refusal.code, port.reached


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "names", [(), ("app",), ("n3",), ("host2",)], ids=["none", "client", "other", "ours"]
)
async def test_every_call_needs_the_certificate_of_its_sender(method: str, names: Sequence[str]) -> None:
    code, reached = await refusal_of(method, SENDER.envelope("n2"), names)
    assert (code, reached) == (Code.CERTIFICATE_REFUSED, [])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("sender", "code"),
    [
        (replace(SENDER, cluster_id="other"), Code.UNKNOWN_CLUSTER),
        (replace(SENDER, group="other"), Code.UNKNOWN_GROUP),
        (replace(SENDER, node_id="stranger"), Code.UNKNOWN_MEMBER),
    ],
    ids=["cluster", "group", "member"],
)
async def test_every_call_is_of_a_member_of_this_cluster(
    method: str, sender: PeerIdentity, code: Code
) -> None:
    assert await refusal_of(method, sender.envelope("n2"), ("n1", "host1")) == (code, [])


@pytest.mark.parametrize("method", METHODS)
async def test_every_call_is_meant_for_this_node(method: str) -> None:
    assert await refusal_of(method, SENDER.envelope("n3"), ("n1",)) == (Code.UNEXPECTED_MEMBER, [])


@pytest.mark.parametrize("method", METHODS)
async def test_a_member_with_its_certificate_reaches_the_node(method: str) -> None:
    _, reached = await refusal_of(method, SENDER.envelope("n2"), ("n1",))
    assert len(reached) == 1
