"""Handles requests from other members. Calls wait for the replica's response; pushes are delivered
directly."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Protocol

from dledger.core.directories import supersedes
from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Goodbye,
    Heartbeat,
    HeartbeatResponse,
    InstallBase,
    Message,
    PositionRequest,
    PositionResponse,
    PushMessage,
    PushResponse,
    TakeLeadership,
    TakeLeadershipResponse,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from dledger.core.values import UNKNOWN_UID
from dledger.errors import Code, InvalidRequest, Overloaded
from dledger.rpc.envelope import PeerClaims, PeerIdentity
from dledger.rpc.ports import FetchedFrames, ImageChunk, ImageQuestion, PushPeer

_ANSWER_WITHIN_S = 5.0
_MAX_WAITING = 64

_MAX_FETCHES = 2
_MAX_FETCH_BYTES = 1 << 20


class FetchEntries(Protocol):
    """Reads whole batches of this node's log; see NodeLog."""

    def __call__(
        self, first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool
    ) -> Awaitable[FetchedFrames]: ...


class FetchImage(Protocol):
    """Reads a chunk of this node's newest image; see ImageSource."""

    def __call__(self, peer: str, question: ImageQuestion) -> Awaitable[ImageChunk]: ...


_Key = tuple[str, str, int, bool]


class InboundEvents(Protocol):
    """The replica's handlers of inbound messages."""

    def receive(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None: ...
    def directory_seen(self, peer: str, number: int) -> None: ...
    def directory_replaced(self, peer: str, reason: str) -> None: ...
    def uid_assigned(self, uid: int) -> None: ...
    def member_replaced(self, reason: str) -> None: ...
    def leader_stream_lost(self, leader_id: str, stream_id: int) -> None: ...


def _key_of(peer: str, message: Message) -> _Key:
    """Return the key that a request and its response have in common."""
    match message:
        case VoteRequest() | VoteResponse():
            return peer, "vote", message.round, message.pre_vote
        case Heartbeat() | HeartbeatResponse():
            return peer, "heartbeat", message.round, False
        case TakeLeadership() | TakeLeadershipResponse():
            return peer, "take", 0, False
        case PositionRequest() | PositionResponse():
            return peer, "position", message.round, False
    raise AssertionError(f"{message} is neither a request nor a response")


class PeerRequests:
    """Implements dledger.rpc.ports.PeerPort."""

    def __init__(
        self, identity: PeerIdentity, events: InboundEvents, fetch: FetchEntries, image: FetchImage
    ) -> None:
        self._image = image
        self._identity = identity
        self._events = events
        self._fetch = fetch
        self._fetching = 0
        self._waiting: dict[_Key, deque[asyncio.Future[Message]]] = {}
        self._waiting_count = 0
        self._streams: dict[str, PushPeer] = {}

    @property
    def identity(self) -> PeerIdentity:
        return self._identity

    def check_claims(self, peer: str, claims: PeerClaims) -> None:
        """See PeerPort."""
        self._check_uids(peer, claims)
        is_known = claims.uid != UNKNOWN_UID and claims.uid == self._identity.uid_of(peer)
        knows_this = claims.receiver_uid != UNKNOWN_UID
        self._check_directories(
            peer,
            claims.directory if is_known else 0,
            claims.receiver_directory if knows_this else 0,
        )

    def _check_uids(self, peer: str, claims: PeerClaims) -> None:
        identity = self._identity
        known, own = identity.uid_of(peer), identity.uid_of(identity.node_id)
        if UNKNOWN_UID < claims.uid < known:
            raise InvalidRequest(
                f"{peer} was replaced: it was added as {claims.uid}, and {identity.node_id} knows {known}",
                code=Code.MEMBER_REPLACED,
            )
        named = claims.receiver_directory
        if claims.receiver_uid == UNKNOWN_UID and named not in (0, identity.directory_of(identity.node_id)):
            # Its addition is not committed yet. Another machine must not get the log in its place.
            raise InvalidRequest(
                f"{identity.node_id} does not use directory {named}", code=Code.UNEXPECTED_MEMBER
            )
        if claims.receiver_uid in (UNKNOWN_UID, own):
            return
        if own == UNKNOWN_UID and named == identity.directory_of(identity.node_id):
            self._events.uid_assigned(claims.receiver_uid)
            return
        if claims.receiver_uid > own != UNKNOWN_UID:
            self._events.member_replaced(f"{peer} knows another {identity.node_id}, added later")
        if own == UNKNOWN_UID:
            text = f"this {identity.node_id} is a new machine that waits to be added (`dledger member add`)"
        else:
            text = f"this {identity.node_id} was added with uid {own}, not {claims.receiver_uid}"
        raise InvalidRequest(text, code=Code.UNEXPECTED_MEMBER)

    def _check_directories(self, peer: str, directory: int, expected: int) -> None:
        """A rejoining node has no number yet, because it may still take a higher one."""
        identity = self._identity
        known, own = identity.directory_of(peer), identity.directory_of(identity.node_id)
        is_new = directory not in (0, known)
        if is_new and not supersedes(directory, known):
            raise InvalidRequest(
                f"{peer} uses directory {directory}, but {identity.node_id} knows its directory {known}",
                code=Code.DIRECTORY_REPLACED,
            )
        if own and expected not in (0, own) and not supersedes(own, expected):
            self._events.directory_replaced(
                peer, f"{peer} knows directory {expected} of this node, not {own}"
            )
            raise InvalidRequest(
                f"{identity.node_id} uses directory {own}, not {expected}", code=Code.UNEXPECTED_MEMBER
            )
        if is_new:
            self._events.directory_seen(peer, directory)

    async def request(self, peer: str, message: Message) -> Message:
        """Deliver a request and return the replica's response. Raises TimeoutError, or Overloaded if too
        many wait.
        """
        if self._waiting_count >= _MAX_WAITING:
            raise Overloaded(f"too many requests from members are waiting: the limit is {_MAX_WAITING}")
        key = _key_of(peer, message)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(key, deque())
        queue.append(future)
        self._waiting_count += 1
        try:
            self._events.receive(peer, message, None)
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                return await future
        finally:
            self._waiting_count -= 1
            if future in queue:
                queue.remove(future)
            if not queue:
                self._waiting.pop(key, None)

    def resolve(self, peer: str, message: Message) -> None:
        """Deliver a response of the replica, or drop it if the request has ended."""
        queue = self._waiting.get(_key_of(peer, message))
        while queue:
            future = queue.popleft()
            if not future.done():
                future.set_result(message)
                return

    def refuse(self, peer: str, message: Message, error: InvalidRequest) -> None:
        """Report a refused message to the peer. Refused responses are dropped."""
        stream = self._streams.get(peer)
        if isinstance(message, Append | Commit | Compare | Truncate | Goodbye | InstallBase):
            if stream is not None and stream.stream_id == message.stream_id:
                stream.refuse(error)
        elif isinstance(message, VoteRequest | Heartbeat | TakeLeadership | PositionRequest):
            for future in self._waiting.get(_key_of(peer, message), ()):
                if not future.done():
                    future.set_exception(error)

    def respond(self, peer: str, response: PushResponse) -> None:
        """Send a response on its push stream, or drop it if the stream has ended."""
        stream = self._streams.get(peer)
        if stream is not None and stream.stream_id == response.stream_id:
            stream.respond(response)

    async def image(self, peer: str, question: ImageQuestion) -> ImageChunk:
        """See PeerPort."""
        return await self._image(peer, question)

    async def fetch(
        self, first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool
    ) -> FetchedFrames:
        """Read for a repair of another member. Repairs are slow and rare, so a few at a time are enough."""
        if self._fetching >= _MAX_FETCHES:
            raise Overloaded(
                f"too many members are fetching entries from this node: the limit is {_MAX_FETCHES}"
            )
        self._fetching += 1
        try:
            size = min(max(max_bytes, 1), _MAX_FETCH_BYTES)
            return await self._fetch(first_index, last_index, size, uncommitted=uncommitted)
        finally:
            self._fetching -= 1

    # -- PeerPort: push streams ---------------------------------------------------------------------------

    def push_opened(self, stream: PushPeer) -> None:
        """Replace an older stream by a newer one.

        Stream ids increase only within one incarnation of the peer, and a rejoined node may have a lower
        incarnation. A stream of another incarnation therefore always replaces the current one. If it is a
        delayed stream of an earlier incarnation, the current leader's stream ends, and the leader opens a new
        one. Pushes of an earlier incarnation have an old term and no effect.
        """
        current = self._streams.get(stream.peer)
        if current is not None:
            if current.incarnation == stream.incarnation and current.stream_id > stream.stream_id:
                stream.replace()  # a newer stream arrived first
                return
            current.replace()
        self._streams[stream.peer] = stream

    def push_received(
        self, stream: PushPeer, message: PushMessage, payload: bytes | memoryview | None
    ) -> None:
        self._events.receive(stream.peer, message, payload)

    def push_ended(self, stream: PushPeer, *, said_goodbye: bool) -> None:
        """React to the end of a stream. If the stream was replaced, or ended with GOODBYE, the leader is not
        suspected."""
        if self._streams.get(stream.peer) is not stream:
            return
        del self._streams[stream.peer]
        if not said_goodbye:
            self._events.leader_stream_lost(stream.peer, stream.stream_id)
