"""Appends by the program that owns a node: each is checked, positioned, filled in and encoded in one step.

This module changes nothing. Errors are raised before any part of the batch is accepted, and most before
`fill` is called. Numbers that the owner assigns inside `fill` therefore have neither duplicates nor gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from dledger.core.values import ENTRY_HEADER_SIZE, Tail
from dledger.errors import Code, InvalidRequest, NotLeader, Overloaded
from dledger.replica.admission import AppendAdmission
from dledger.replica.replica import Replica
from dledger.store.format.batch import Batch, Body, encode_batch, place
from dledger.store.format.internal import StampedInternal, encode_internal


class Assigned(NamedTuple):
    """Position of a batch that is not written yet: body i will be entry first_index + i at byte position
    positions[i]."""

    first_index: int
    term: int
    positions: Sequence[int]  # entry positions; bodies follow after 48 bytes
    stamp_ms: int  # cluster time, ms since the Unix epoch; never decreases along the log
    steps_ms: int = 0  # sum of the steps of cluster time; without them it advances at clock rate


Fill: TypeAlias = Callable[[Assigned], Sequence[Body]]


class PreparedBatch(NamedTuple):
    """Arguments for `AppendAdmission.gather`."""

    batch: Batch
    head: StampedInternal | None
    body_count: int


def prepare(
    replica: Replica, sizes: Sequence[int], fill: Fill, expected: tuple[int, int], now_ms: int
) -> PreparedBatch:
    """Encode a batch with bodies of `sizes` bytes, which `fill` supplies. Gather it immediately.

    `fill` is called once the batch is certain to be accepted. Raises NotLeader if (term, role_epoch) is not
    `expected`, InvalidRequest or Overloaded if a limit is exceeded or there is no room, ValueError if the
    lengths of the bodies are not `sizes`, and exceptions of `fill`.
    """
    _judge(replica, sizes, expected)
    admission, term = replica.admission, replica.core.term
    stamp_ms, stamped = admission.stamp_of_owner(now_ms, replica.wall_ms())
    head = None if stamped is None else encode_internal(stamped)
    tail = admission.tail
    assigned = _places(admission, tail, term, sizes, head, stamp_ms)
    bodies = fill(assigned)
    if admission.tail is not tail:
        raise ValueError("fill has appended to the log during its own append")
    if list(map(len, bodies)) != list(sizes):
        raise ValueError(f"fill returned bodies of {list(map(len, bodies))} bytes, expected {list(sizes)}")
    batch = encode_batch(tail, term, bodies, data_file_size=admission.data_file_size, head=head)
    if len(batch.data) != batch.size:
        raise ValueError("fill returned a memoryview whose items are not bytes")
    return PreparedBatch(batch, stamped, len(sizes))


def _judge(replica: Replica, sizes: Sequence[int], expected: tuple[int, int]) -> None:
    core, admission = replica.core, replica.admission
    problem = replica.why_no_append()
    if problem is not None:
        raise problem
    if (core.term, core.role_epoch) != expected:
        raise NotLeader(
            f"expected leadership with (term, role_epoch) {expected}, but this node leads with "
            f"({core.term}, {core.role_epoch})",
            code=Code.ROLE_EPOCH_CHANGED,
            leader_id=core.leader_id,
        )
    if not sizes:
        raise InvalidRequest("an append needs at least one body", code=Code.REQUEST_WITH_EMPTY_BODYS)
    if min(sizes) < 0:
        raise InvalidRequest(f"a body has the negative size {min(sizes)}")
    problem = admission.check_limits(sizes)
    if problem is not None:
        raise problem
    if len(replica.admission_queue):
        raise Overloaded("earlier appends are waiting for disk space; try again later")


def _places(
    admission: AppendAdmission, tail: Tail, term: int, sizes: Sequence[int], head: bytes | None, stamp_ms: int
) -> Assigned:
    """Assign index and positions. Raises Overloaded if there is no room."""
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
    return Assigned(first_index, term, positions, stamp_ms, admission.state.clock.steps_ms)
