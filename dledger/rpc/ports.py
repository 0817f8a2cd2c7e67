"""What the servicers need of a node. The node implements these; nothing here knows how."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dledger.core.messages import Message, PushMessage, PushResponse
from dledger.core.values import Base
from dledger.errors import DLedgerError, InvalidRequest
from dledger.rpc.convert_log import AppendResult
from dledger.rpc.envelope import Identity
from dledger.rpc.transport.channels import MAX_CONNECTIONS, MAX_PAYLOAD_BYTES
from dledger.status.model import DamagedRange, NodeStatus


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What one node accepts from its clients. Past each: a numbered refusal."""

    max_body_bytes: int = MAX_PAYLOAD_BYTES
    max_batch_bytes: int = MAX_PAYLOAD_BYTES  # bodies and the 48-byte header of each
    max_batch_entries: int = 4096
    max_append_streams: int = 1024
    max_read_streams: int = 256
    max_unanswered_per_stream: int = 1024
    max_calls: int = 16_384  # of clients, of all methods together
    max_connections: int = MAX_CONNECTIONS  # of clients and members
    append_timeout_ms: int = 5_000  # when the client names none
    max_append_timeout_ms: int = 60_000
    read_chunk_bytes: int = 512 << 10


class AppendToken(Protocol):
    """Stands for one append until it is answered, once."""

    def answer(self, outcome: AppendResult | DLedgerError) -> None: ...


class Chunk(NamedTuple):
    """Consecutive committed entries as bytes. Only if decoded: `entries` as (index, term, pos, magic, body),
    and how many of them are of users."""

    last_index: int
    data: bytes
    entries: Sequence[tuple[int, int, int, int, bytes]]
    user_entries: int


class FetchedFrames(NamedTuple):
    """Whole batches as they are stored: entries first_index to last_index."""

    first_index: int
    last_index: int
    data: bytes


class LogPort(Protocol):
    """A node as its clients see it. All methods are called on the event loop."""

    @property
    def group(self) -> str: ...

    @property
    def limits(self) -> ServiceLimits: ...

    @property
    def begin_index(self) -> int:
        """The first index that can be read; 0 for a log that has never had an entry."""

    @property
    def readable_index(self) -> int:
        """The last index that may be read here: committed, and stored on this node."""

    def append(
        self,
        token: AppendToken,
        bodies: Sequence[bytes],
        session: tuple[int, int] | None,
        open_session: bool,
        timeout_ms: int,
    ) -> None:
        """Answered through `token`, perhaps before this returns."""

    def check_serving(self) -> None:
        """ReadFailed (ILLEGAL_MEMBER_STATE) while this node has no state to serve."""

    async def read_index(self) -> int:
        """A linearizable read point, from the leader. ReadFailed or Overloaded if there is none to be had."""

    async def wait_readable(self, index: int, *, timeout_ms: int | None) -> None:
        """Until readable_index >= index. ReadFailed when the time is over or the node stops."""

    async def load(self, first_index: int, last_index: int, max_bytes: int, *, decode: bool) -> Chunk:
        """Entries from first_index on, at least one and not above last_index. ReadFailed, StorageError."""

    def observe_append(self, seconds: float) -> None:
        """How long a committed append took."""

    def limit_hit(self, name: str) -> None: ...


class PushPeer(Protocol):
    """The receiving end of a push stream, as the node uses it."""

    @property
    def peer(self) -> str: ...

    @property
    def stream_id(self) -> int: ...

    @property
    def incarnation(self) -> int:
        """Of the peer, as its handshake gave it."""

    def respond(self, response: PushResponse) -> None: ...

    def refuse(self, error: InvalidRequest) -> None:
        """What was received last is not believed: end this stream, and say why."""

    def replace(self) -> None:
        """End this stream at once: another stream of the same peer takes its place."""


class PeerPort(Protocol):
    """A node as the other members see it. All methods are called on the event loop."""

    @property
    def identity(self) -> Identity: ...

    async def ask(self, peer: str, message: Message) -> Message:
        """Hand over a question and wait for its answer. TimeoutError, DLedgerError."""

    async def fetch(
        self, first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool
    ) -> FetchedFrames:
        """Whole batches from first_index on, at least one: committed, or `uncommitted` durable ones, which
        may yet be taken back. ReadFailed, StorageError, Overloaded."""

    def push_opened(self, stream: PushPeer) -> None: ...

    def push_received(
        self, stream: PushPeer, message: PushMessage, payload: bytes | memoryview | None
    ) -> None: ...

    def push_ended(self, stream: PushPeer, *, said_goodbye: bool) -> None:
        """The stream has ended. `said_goodbye`: its last message was a GOODBYE."""


class ScrubProgress(NamedTuple):
    """How far a scrub has come. `found`: damage since the last report."""

    next_index: int
    ledger_end_index: int
    bytes_read: int
    found: tuple[DamagedRange, ...]
    done: bool


class BackupHead(NamedTuple):
    """What a backup holds: base.index + 1 to last_index of this node's log."""

    cluster_id: str
    group: str
    node_id: str
    data_file_size: int
    flush_mode: str
    base: Base
    last_index: int


class AdminPort(Protocol):
    """A node as its operator sees it."""

    @property
    def group(self) -> str: ...

    def node_status(self) -> NodeStatus: ...

    async def transfer(self, to: str | None) -> None:
        """Returns when leadership was handed over; DLedgerError says why not."""

    async def purge(self, before_index: int, before_age_ms: int) -> int:
        """Let entries before an index, or older than an age, go. Returns the index; NotLeader."""

    def scrub(self, bytes_per_second: int) -> AsyncGenerator[ScrubProgress, None]:
        """Verify all that this node stores, and repair it."""

    def backup(self) -> AsyncGenerator[BackupHead | bytes, None]:
        """What follows, then all committed entries as frames. ReadFailed while this node serves nothing."""
