"""What a replica finds out about a push with the bytes of its own log, before the core judges it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.core.log_view import LogView
from dledger.core.messages import Append, Compare, Message, PushResponse, PushType, Truncate
from dledger.core.raft import RaftCore
from dledger.core.values import Tail, TermRun
from dledger.errors import Code
from dledger.replica.admission import Admission
from dledger.store.api import Damage, EntryDamaged, LogStore
from dledger.store.format.batch import Batch, DamagedBatch, parse_batches

TailAt = Callable[[int], Tail]
Payload = bytes | memoryview | None


class PushedTails:
    """Ends of batches that a leader has pushed. Where entries are known to be damaged here, they say what the
    log has there: the same index and term is the same entry (rule 6)."""

    def __init__(self, log: LogView, store: LogStore, tail_at: TailAt) -> None:
        """`tail_at`: by the log's own bytes."""
        self._log = log
        self._store = store
        self.own_tail_at = tail_at
        self.data_file_size = store.data_file_size
        self._last: Tail | None = None  # of the newest push
        self.incoming: list[Batch] = []  # the one that is being received

    def received(self) -> None:
        if self.incoming:
            self._last = self.incoming[-1].tail
            self.incoming = []

    def of_push(self, index: int) -> Tail | None:
        for batch in self.incoming:
            if batch.last_index == index:
                return batch.tail
        last = self._last
        return last if last and last.index == index and self._log.holds(index, last.term) else None

    def at(self, index: int, *, on_disk: bool = False) -> Tail:
        """EntryDamaged if neither this log nor what was pushed last can tell, or if the damage is news: it is
        noted before anything is built upon it. `on_disk`: whatever is cached."""
        try:
            return (self._store.tail_at if on_disk else self.own_tail_at)(index)
        except EntryDamaged as error:
            tail = self.of_push(index)
            if tail is None or damage_met(self._store, error) is None:
                raise
            return tail


def lacks_room(core: RaftCore, admission: Admission, store: LogStore, incoming: Sequence[Batch]) -> bool:
    """Would what is received have to go where there is no room? What was taken has to be stored."""
    if not incoming or incoming[-1].last_index <= core.log.end_index:
        return False
    last = incoming[-1]
    if admission.has_room_for(last) or store.has_room:
        return False
    # What was assigned before the leader knew may use the reserve: else what makes room again (an image, a
    # purge), which comes behind it in the log, could never be stored.
    return not store.could_take(last.end_pos, last.last_index)


def read_push(
    core: RaftCore, pushed: PushedTails, message: Append | Compare | Truncate, payload: Payload
) -> bool | None:
    """Whether the chains match (COMPARE); the batches of an APPEND are `pushed.incoming` then.

    DamagedBatch if the bytes do not check out, EntryDamaged if what is here cannot be read."""
    if isinstance(message, Compare):
        return chain_matches(core.log, pushed.own_tail_at, message)
    if isinstance(message, Append):
        pushed.incoming = parse_push(core, pushed.at, message, payload, data_file_size=pushed.data_file_size)
    check_cut(core, pushed, message)
    return None


def chain_matches(log: LogView, tail_at: TailAt, message: Compare) -> bool | None:
    """Rule 6: two logs that hold the same (index, term) must have the same history up to there."""
    if message.index <= log.base.index or not log.holds(message.index, message.index_term):
        return None
    return tail_at(message.index).chain_crc == message.chain_crc


def damage_met(store: LogStore, error: DamagedBatch | EntryDamaged) -> Damage | None:
    """The damage of this log that the error comes from; None if it is not known yet, or is in the push."""
    if not isinstance(error, EntryDamaged):
        return None
    return next((d for d in store.damages if d.first_index <= error.index <= d.last_index), None)


def parse_push(
    core: RaftCore,
    tail_at: TailAt,
    message: Append,
    payload: Payload,
    *,
    data_file_size: int,
) -> list[Batch]:
    """Verify the bytes of an Append, if the core is going to look at them at all. DamagedBatch."""
    log, prev_index = core.log, message.prev_index
    if message.term < core.term or not log.holds(prev_index, message.prev_term):
        return []  # an old leader, or a conflict: the core answers without the bytes
    if prev_index < log.base.index:
        return []
    tail = tail_at(prev_index)
    batches = parse_batches(payload or b"", tail, data_file_size=data_file_size)
    if not batches or batches[-1].last_index != message.last_index:
        raise DamagedBatch("the batches are not those announced", index=message.first_index, pos=tail.pos)
    term, runs = -1, []
    for batch in batches:
        if batch.term != term:
            term = batch.term
            runs.append(TermRun(term, batch.first_index))
    if tuple(runs) != message.runs:
        raise DamagedBatch("the terms are not those announced", index=message.first_index, pos=tail.pos)
    return batches


def check_cut(core: RaftCore, pushed: PushedTails, message: Append | Truncate) -> None:
    """EntryDamaged if the message would make the log end at an entry that cannot be read and was not pushed
    just now: to cut behind it, its end has to be known."""
    cut = core.following.cut_by(message)
    if cut is not None:
        # The disk thread will ask the store, whatever is cached.
        pushed.at(cut - 1, on_disk=cut - 1 <= core.log.durable_index)


def refusal(core: RaftCore, message: Message, code: Code, damage: Damage | None = None) -> PushResponse:
    """The leader then compares again, after a while, at the index before what was refused, or before the
    damage that was met."""
    assert isinstance(message, Append | Compare | Truncate)
    log = core.log
    is_probe = isinstance(message, Compare)
    return PushResponse(
        core.term,
        core.node_id,
        message.stream_id,
        code,
        PushType.COMPARE if is_probe else PushType.APPEND,
        message.prev_index if isinstance(message, Append) else message.index - (not is_probe),
        log.begin_index,
        log.end_index,
        conflict_index=-1 if damage is None else damage.first_index,
        counts=not core.hard_state.is_barred,
        has_room=core.has_room and code is not Code.DISK_FULL,
        owner=core.owner,
    )
