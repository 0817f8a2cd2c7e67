"""Appends of the program that owns a node: judged, given their places, filled in and encoded in one step.

Nothing is changed here. What is wrong is raised, mostly before `fill` is called, and always before anything
of the batch is taken: so what the owner numbers inside `fill` is numbered once and without holes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from dledger.core.values import ENTRY_HEADER_SIZE, Tail
from dledger.errors import Code, InvalidRequest, NotLeader, Overloaded
from dledger.replica.admission import Admission
from dledger.replica.replica import Replica
from dledger.store.format.batch import Batch, Body, encode_batch, place
from dledger.store.format.internal import Stamped, encode_internal


class Assigned(NamedTuple):
    """Where a batch is going to be: body i becomes entry first_index + i, at byte position positions[i]."""

    first_index: int
    term: int
    positions: Sequence[int]  # of the entries; the bodies lie 48 bytes behind
    stamp_ms: int  # cluster time, ms since the Unix epoch; it never falls along the log


Fill: TypeAlias = Callable[[Assigned], Sequence[Body]]


class PreparedBatch(NamedTuple):
    """All that `Admission.gather` needs of a batch."""

    batch: Batch
    head: Stamped | None
    body_count: int


def prepare(
    replica: Replica, sizes: Sequence[int], fill: Fill, expected: tuple[int, int], now_ms: int
) -> PreparedBatch:
    """A batch with bodies of `sizes` bytes, which `fill` gives once it is sure to be taken. To be gathered at
    once.

    Raises NotLeader if (term, role_epoch) is not `expected`, InvalidRequest or Overloaded for limits and
    room, ValueError for bodies that are not as long as `sizes` says, and what `fill` raises.
    """
    _judge(replica, sizes, expected)
    admission, term = replica.admission, replica.core.term
    stamp_ms, stamped = admission.stamp_of_owner(now_ms, replica.wall_ms())
    head = None if stamped is None else encode_internal(stamped)
    tail = admission.tail
    assigned = _places(admission, tail, term, sizes, head, stamp_ms)
    bodies = fill(assigned)
    if admission.tail is not tail:
        raise ValueError("fill has appended to the log that it was to fill in a batch for")
    if list(map(len, bodies)) != list(sizes):
        raise ValueError(f"fill gave bodies of {list(map(len, bodies))} bytes, not of {list(sizes)}")
    batch = encode_batch(tail, term, bodies, data_file_size=admission.data_file_size, head=head)
    if len(batch.data) != batch.size:
        raise ValueError("fill gave a memoryview whose items are not bytes")
    return PreparedBatch(batch, stamped, len(sizes))


def _judge(replica: Replica, sizes: Sequence[int], expected: tuple[int, int]) -> None:
    core, admission = replica.core, replica.admission
    problem = replica.why_no_append()
    if problem is not None:
        raise problem
    if (core.term, core.role_epoch) != expected:
        raise NotLeader(
            f"this node leads with (term, role_epoch) ({core.term}, {core.role_epoch}), not with {expected}",
            code=Code.ROLE_EPOCH_CHANGED,
            leader_id=core.leader_id,
        )
    if not sizes:
        raise InvalidRequest("a batch has at least one body", code=Code.REQUEST_WITH_EMPTY_BODYS)
    if min(sizes) < 0:
        raise InvalidRequest(f"a body of {min(sizes)} bytes")
    problem = admission.check_limits(sizes)
    if problem is not None:
        raise problem
    if len(replica.admission_queue):
        raise Overloaded("others wait for room on the disk; try again later")


def _places(
    admission: Admission, tail: Tail, term: int, sizes: Sequence[int], head: bytes | None, stamp_ms: int
) -> Assigned:
    """Overloaded if there is no room for such a batch."""
    head_size = 0 if head is None else ENTRY_HEADER_SIZE + len(head)
    size = head_size + sum(sizes) + ENTRY_HEADER_SIZE * len(sizes)
    pos = place(tail.pos, size, admission.data_file_size)
    first_index = tail.index + 1 + (head is not None)
    problem = admission.why_no_room(pos + size, first_index + len(sizes) - 1)
    if problem is not None:
        admission.want_room()
        raise problem
    entry_sizes = [ENTRY_HEADER_SIZE + body_size for body_size in sizes]
    positions = list(accumulate(entry_sizes[:-1], initial=pos + head_size))
    return Assigned(first_index, term, positions, stamp_ms)
