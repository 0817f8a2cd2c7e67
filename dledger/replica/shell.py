"""What a replica asks of the world around it. Two shells exist: the asyncio node and the simulator.

A shell never calls back into the replica from inside one of these methods; it queues, and calls later. That
keeps every step of a replica whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.core.messages import Message
from dledger.core.values import Base, HardState, Role, Tail
from dledger.errors import DLedgerError, InvalidRequest
from dledger.replica.rebuild_job import RebuildJob
from dledger.store.format.batch import Batch


@dataclass(slots=True)
class AppendOutcome:
    """A committed append. index, term, pos are those of the first body's entry; -1 when forgotten."""

    index: int
    count: int
    term: int
    pos: int
    duplicate: bool = False


class AppendToken(Protocol):
    """Stands for one append until it is answered, once. The replica only hands it back."""

    def answer(self, outcome: AppendOutcome | DLedgerError) -> None: ...


@dataclass(slots=True)
class WriteJob:
    """Disk: append these batches, make them durable (SYNC_FLUSH), write their index records; then report
    `replica.stored(generation, last_index, term)`. A shell may make several queued jobs durable at once."""

    generation: int
    batches: Sequence[Batch]
    is_late: bool = False  # a majority had them before: this follower is behind


@dataclass(slots=True)
class TruncateJob:
    """Disk: store.truncate_after(last_index, tail), then store.sync(), so that what is left is durable even
    though completions of earlier writes are void now; then `replica.stored(generation, last_index, term)`."""

    generation: int
    last_index: int
    term: int  # of the entry at last_index
    tail: Tail | None = None  # the same entry's end, should it be damaged on the disk


@dataclass(slots=True)
class HardStateJob:
    """Disk: store.save_hard_state; then report `replica.hard_state_saved(number)`."""

    number: int
    hard_state: HardState


@dataclass(slots=True)
class ResetJob:
    """Disk: store.reset_to(base); then report `replica.stored(generation, base.index, base.term)`."""

    generation: int
    base: Base


@dataclass(slots=True)
class PurgeJob:
    """Disk: store.purge_to(base). No completion is reported; the core has forgotten the entries already."""

    base: Base


DiskJob = WriteJob | TruncateJob | HardStateJob | ResetJob | PurgeJob


@dataclass(slots=True)
class RoleNotice:
    """Role, term or known leader of this node changed. `cause` as in core.effects.RoleChanged."""

    role: Role
    term: int
    role_epoch: int
    leader_id: str | None
    cause: str
    barrier_index: int = -1  # LEADER: index of the no-op of this leadership, which is appended at once
    detail: str = ""


class Shell(Protocol):
    """Outputs of a replica."""

    def send(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """Send to a peer; lost or late is allowed. Push messages (COMPARE, TRUNCATE, APPEND with its
        payload of whole batches, COMMIT, GOODBYE) go on the push stream named by their stream_id, in order,
        or nowhere if that stream is gone; a PushResponse goes back on the stream that it answers."""

    def fsync_began_ms(self) -> int | None:
        """When the fsync under way on the disk thread began, on the clock of `now_ms`; None if none is."""

    def submit(self, job: DiskJob) -> None:
        """Queue for the one disk thread, first in first out."""

    def load_push(self, peer: str, stream_id: int, first_index: int, last_index: int, max_bytes: int) -> None:
        """Read whole batches from the store off the loop, then `replica.push_loaded(...)`."""

    def rebuild(self, job: RebuildJob) -> None:
        """Run the job off the loop, then `replica.log_read(job.number, outcome)`."""

    def rebuilt(self) -> None:
        """Sessions and images are known from now on, as far as the log tells of them."""

    def save_state(self, image_index: int) -> None:
        """Let the state machine save its state as of image_index (all entries before it applied, none after),
        then `replica.state_saved(image_index, chunks)`; without a state machine at once, with no chunks."""

    def answer_append(self, token: AppendToken, outcome: AppendOutcome | DLedgerError) -> None: ...

    def answer_read(self, token: object, outcome: int | DLedgerError) -> None: ...

    def answer_transfer(self, token: object, outcome: DLedgerError | None) -> None: ...

    def role_changed(self, notice: RoleNotice) -> None:
        """Becoming LEADER: open a push stream to every other member, and keep one open (with a new,
        higher stream_id each time) until the next notice; otherwise close them all after what was sent."""

    def committed(self, committed_index: int) -> None:
        """committed_index grew: wake readers."""

    def commit_moved(self) -> None:
        """Leader: call `replica.announce_commit` within milliseconds, unless this is called again before: a
        push that goes meanwhile says as much, and costs no message of its own."""

    def refused(self, peer: str, message: Message, error: InvalidRequest) -> None:
        """The message of the peer changed nothing: tell it and the operator why."""

    def fatal(self, error: DLedgerError) -> None:
        """Stop the process: a safety rule would have been broken, or the disk cannot be believed."""
