"""Interface of a replica to its environment. Two shells exist: the asyncio node and the simulator.

A shell never calls the replica from inside one of these methods. It queues the call for later, which keeps
every step of a replica atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.core.messages import Message
from dledger.core.values import Base, HardState, MembershipAt, Role, Tail
from dledger.errors import DLedgerError, InvalidRequest
from dledger.replica.images import ImageRequest, LoggedImage
from dledger.replica.rebuild_job import RebuildJob
from dledger.store.format.batch import Batch
from dledger.store.image_files import ImageMark


@dataclass(slots=True)
class AppendOutcome:
    """A committed append. `index`, `term` and `pos` describe the entry of the first body; they are -1 if they
    are no longer known."""

    index: int
    count: int
    term: int
    pos: int
    duplicate: bool = False


class AppendHandle(Protocol):
    """Identifies one append until it is answered, exactly once. The replica passes it through unchanged."""

    def answer(self, outcome: AppendOutcome | DLedgerError) -> None: ...


@dataclass(slots=True)
class WriteJob:
    """On the disk thread, append these batches, make them durable (SYNC_FLUSH) and write their index records.
    Then report `replica.stored(generation, last_index, term)`. A shell may sync several queued jobs together.
    """

    generation: int
    batches: Sequence[Batch]
    is_late: bool = False  # committed already: this follower is behind


@dataclass(slots=True)
class TruncateJob:
    """On the disk thread, call store.truncate_after(last_index, tail), then store.sync(), because completions
    of earlier writes are now ignored. Then report `replica.stored(generation, last_index, term)`.
    """

    generation: int
    last_index: int
    term: int  # term of the entry at last_index
    tail: Tail | None = None  # end of that entry, in case it is damaged on disk


@dataclass(slots=True)
class HardStateJob:
    """Disk: store.save_hard_state, then report `replica.hard_state_saved(number)`."""

    number: int
    hard_state: HardState


@dataclass(slots=True)
class ResetJob:
    """On the disk thread, call store.reset_to(base), then report `replica.stored(generation, base.index,
    base.term)`."""

    generation: int
    base: Base


@dataclass(slots=True)
class PurgeJob:
    """On the disk thread, call store.purge_to(base). This is not reported, because the core has already
    dropped the entries."""

    base: Base


DiskJob = WriteJob | TruncateJob | HardStateJob | ResetJob | PurgeJob


@dataclass(slots=True)
class RoleNotice:
    """The role, the term or the known leader of this node changed. `cause` as in core.effects.RoleChanged."""

    role: Role
    term: int
    role_epoch: int
    leader_id: str | None
    cause: str
    barrier_index: int = -1  # LEADER: index of the no-op of this leadership, appended next
    detail: str = ""


class Shell(Protocol):
    """Outputs of a replica."""

    def send(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """Send to a peer; loss and delay are allowed.

        Push messages (COMPARE, TRUNCATE, APPEND with a payload of whole batches, COMMIT, GOODBYE) go to the
        push stream named by their stream_id, in order, or are dropped if that stream has ended. A
        PushResponse goes back on the stream that it answers.
        """

    def fsync_began_ms(self) -> int | None:
        """Start of the fsync running on the disk thread, on the clock of `now_ms`; None
        if none is running.
        """

    def submit(self, job: DiskJob) -> None:
        """Queue a job for the single disk thread, first in first out."""

    def load_push(self, peer: str, stream_id: int, first_index: int, last_index: int, max_bytes: int) -> None:
        """Read whole batches from the store off the loop, then call `replica.push_loaded(...)`."""

    def rebuild(self, job: RebuildJob) -> None:
        """Run the job off the loop, then call `replica.log_read(job.number, outcome)`."""

    def rebuilt(self) -> None:
        """Handle the end of the rebuild: all sessions and images that the log contains are known."""

    def save_state(self, request: ImageRequest) -> None:
        """Write an image into the files: the sessions, and the state machine with all entries before the mark
        applied and none after, once the mark is committed. Then call `replica.image_stored`, or
        `replica.image_failed`, also if the log has another entry there by then.
        """

    def load_image(self) -> None:
        """Off the loop, read the newest image in the files. Then call `replica.image_stored`, unless there is
        none."""

    def copy_image(self, image: LoggedImage) -> None:
        """Off the loop, copy an image of the log into the files. Then as `load_image`."""

    def discard_image(self, mark: ImageMark) -> None:
        """Off the loop, remove this image from the files, unless another one has replaced it."""

    def answer_append(self, token: AppendHandle, outcome: AppendOutcome | DLedgerError) -> None: ...

    def answer_read(self, token: object, outcome: int | DLedgerError) -> None: ...

    def answer_transfer(self, token: object, outcome: DLedgerError | None) -> None: ...

    def role_changed(self, notice: RoleNotice) -> None:
        """React to a change of role.

        A new LEADER opens a push stream to every other member and keeps one open (with a new, higher
        stream_id each time) until the next notice. For any other role, close all streams after the queued
        messages.
        """

    def members_changed(self, in_force: MembershipAt, peers: Sequence[str]) -> None:
        """Another configuration is in force. Keep links to exactly these peers. A LEADER has push streams to
        them."""

    def committed(self, committed_index: int) -> None:
        """committed_index increased: wake readers."""

    def commit_moved(self) -> None:
        """On the leader, call `replica.announce_commit` within milliseconds, unless this method is called
        again before. A push in the meantime contains the commit index, so that no separate message is needed.
        """

    def refused(self, peer: str, message: Message, error: InvalidRequest) -> None:
        """Report the error to the peer and to the operator, because the replica ignored a message."""

    def fatal(self, error: DLedgerError) -> None:
        """Stop the process because of a safety violation or an unreliable disk."""
