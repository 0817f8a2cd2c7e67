"""The interfaces that the services require of a node, which implements them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dledger.core.membership_change import MembershipChange
from dledger.core.messages import Message, PushMessage, PushResponse
from dledger.core.values import Base
from dledger.errors import DLedgerError, InvalidRequest
from dledger.infra.transport.channels import MAX_CONNECTIONS, MAX_PAYLOAD_BYTES
from dledger.rpc.convert_log import AppendResult
from dledger.rpc.envelope import PeerClaims, PeerIdentity
from dledger.status.model import DamagedRange, NodeStatus


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of a node for requests of its clients. Requests beyond a limit are refused with its code."""

    max_body_bytes: int = MAX_PAYLOAD_BYTES
    max_batch_bytes: int = MAX_PAYLOAD_BYTES  # bodies plus a 48-byte header each
    max_batch_entries: int = 16_384
    max_pending_bytes: int = 64 << 20  # of unanswered appends of clients
    max_pending_appends: int = 65_536
    max_append_streams: int = 1024
    max_read_streams: int = 256
    max_unanswered_per_stream: int = 1024
    max_calls: int = 16_384  # of clients, for all methods together
    max_connections: int = MAX_CONNECTIONS  # of clients and members
    append_timeout_ms: int = 5_000  # default of requests without a timeout
    max_append_timeout_ms: int = 60_000
    read_chunk_bytes: int = 512 << 10


class AppendToken(Protocol):
    """The handle of one append, which is completed exactly once."""

    def answer(self, outcome: AppendResult | DLedgerError) -> None: ...


class Chunk(NamedTuple):
    """Consecutive committed entries as bytes. If decoded, also `entries` as (index, term, pos, magic, body),
    and the number of user entries among them."""

    last_index: int
    data: bytes
    entries: Sequence[tuple[int, int, int, int, bytes]]
    user_entries: int


class FetchedFrames(NamedTuple):
    """Whole batches in their stored encoding: entries first_index to last_index."""

    first_index: int
    last_index: int
    data: bytes


class ImageQuestion(NamedTuple):
    """Asks a member for a chunk of its newest state image."""

    least_index: int  # the mark of the image must be at or above this index
    index: int  # type: ignore[assignment]  # hides tuple.index; mark of an image that has arrived in part
    term: int
    chunk: int


class ImageChunk(NamedTuple):
    """A chunk of the image in question; or the manifest of another image, with its first chunk."""

    manifest: bytes
    data: bytes


class LogPort(Protocol):
    """The client-facing interface of a node. All methods are called on the event loop."""

    @property
    def group(self) -> str: ...

    @property
    def limits(self) -> ServiceLimits: ...

    @property
    def begin_index(self) -> int:
        """The first readable index; 0 for a log that has never had an entry."""

    @property
    def readable_index(self) -> int:
        """The last readable index: committed, and stored on this node."""

    def append(
        self,
        token: AppendToken,
        bodies: Sequence[bytes],
        session: tuple[int, int] | None,
        open_session: bool,
        timeout_ms: int,
    ) -> None:
        """Append a batch. The result is passed to `token`, possibly before this returns."""

    def check_serving(self) -> None:
        """Raise ReadFailed (ILLEGAL_MEMBER_STATE) while this node has no state to serve."""

    async def read_index(self) -> int:
        """Return a linearizable read index from the leader. Raises ReadFailed or Overloaded if none is
        available."""

    async def wait_readable(self, index: int, *, timeout_ms: int | None) -> None:
        """Wait until readable_index >= index. Raises ReadFailed after the timeout, or when the node stops."""

    async def load(self, first_index: int, last_index: int, max_bytes: int, *, decode: bool) -> Chunk:
        """Load entries from first_index to at most last_index, at least one. Raises ReadFailed or
        StorageError."""

    def observe_append(self, seconds: float) -> None:
        """Record the duration of a committed append."""

    def limit_hit(self, name: str) -> None: ...


class PushPeer(Protocol):
    """The receiving end of a push stream, as used by the node."""

    @property
    def peer(self) -> str: ...

    @property
    def stream_id(self) -> int: ...

    @property
    def incarnation(self) -> int:
        """The incarnation of the peer, from its handshake."""

    def respond(self, response: PushResponse) -> None: ...

    def refuse(self, error: InvalidRequest) -> None:
        """Reject the last received message and end this stream with an error."""

    def replace(self) -> None:
        """End this stream immediately, because another stream of the same peer replaces it."""


class PeerPort(Protocol):
    """The peer-facing interface of a node. All methods are called on the event loop."""

    @property
    def identity(self) -> PeerIdentity: ...

    def check_claims(self, peer: str, claims: PeerClaims) -> None:
        """Check the uids of both ends of a message, and their directories (dledger.core.directories).

        Raises InvalidRequest MEMBER_REPLACED or DIRECTORY_REPLACED if the peer was replaced or uses an
        earlier directory. Stops this node, and raises UNEXPECTED_MEMBER, if that is true of this node.
        """

    async def request(self, peer: str, message: Message) -> Message:
        """Pass a request to the node and wait for its response. Raises TimeoutError or DLedgerError."""

    async def fetch(
        self, first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool
    ) -> FetchedFrames:
        """Fetch whole batches starting at first_index, at least one. They are committed or, with
        `uncommitted`, only durable, so that they may still be truncated. Raises ReadFailed, StorageError or
        Overloaded."""

    async def image(self, peer: str, question: ImageQuestion) -> ImageChunk:
        """Return a chunk of the newest state image. Raises ReadFailed, StorageError or InvalidRequest."""

    def push_opened(self, stream: PushPeer) -> None: ...

    def push_received(
        self, stream: PushPeer, message: PushMessage, payload: bytes | memoryview | None
    ) -> None: ...

    def push_ended(self, stream: PushPeer, *, said_goodbye: bool) -> None:
        """Handle the end of the stream. `said_goodbye`: the last message of the stream was a GOODBYE."""


class ScrubProgress(NamedTuple):
    """Progress of a scrub. `found`: damage since the last report."""

    next_index: int
    ledger_end_index: int
    bytes_read: int
    found: tuple[DamagedRange, ...]
    done: bool


class BackupHead(NamedTuple):
    """The header of a backup, which contains the entries base.index + 1 to last_index of this node's log.

    The chunks of the image, if there is one, precede the entries.
    """

    cluster_id: str
    group: str
    node_id: str
    data_file_size: int
    flush_mode: str
    base: Base
    last_index: int
    image: bytes = b""  # manifest of the state image that the entries follow (docs/formats.md); empty: none


class AdminPort(Protocol):
    """The operator-facing interface of a node."""

    @property
    def group(self) -> str: ...

    def node_status(self) -> NodeStatus: ...

    async def transfer(self, to: str | None) -> None:
        """Transfer leadership, and return once the transfer has succeeded. Raises DLedgerError with the
        reason if it failed."""

    async def change_members(self, change: MembershipChange, timeout: float) -> int:
        """Change the members, and return the index of the newest change once it is committed. Raises
        DLedgerError, or Indeterminate if it is not committed within `timeout` seconds."""

    async def purge(self, before_index: int, before_age_ms: int) -> int:
        """Request the removal of entries before an index, or older than an age. Returns the index. Raises
        NotLeader."""

    def scrub(self, bytes_per_second: int) -> AsyncGenerator[ScrubProgress, None]:
        """Verify all entries stored by this node, and repair damage."""

    def backup(self) -> AsyncGenerator[BackupHead | bytes, None]:
        """Yield a header, then all committed entries as frames. Raises ReadFailed while this node serves no
        state."""
