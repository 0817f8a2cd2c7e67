"""Calls waiting to be sent, and the batches they travel in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from typing import Any, Protocol

from dledger.client.values import AppendResult, AttemptHook
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest
from dledger.rpc.log_client import AppendAnswer
from dledger.rpc.transport.channels import MAX_PAYLOAD_BYTES

#: What a batch in a session holds besides its bodies: the session entry, with room to spare (bytes).
_SESSION_ENTRY_BYTES = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """How a client batches. The defaults suit a cluster with default limits."""

    #: Calls gather into batches up to this size, headers included (bytes); a greater body travels alone.
    max_batch_bytes: int = 1024 * 1024
    #: ... and up to so many entries.
    max_batch_count: int = 4096
    #: Batches sent and not yet answered. A session allows 64 at most.
    max_inflight_batches: int = 8
    #: While a batch is in flight, calls gather until so many bytes wait. A lone call never waits.
    gather_bytes: int = 64 * 1024
    #: `submit` waits while more than this is queued or in flight (bytes).
    max_pending_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.max_inflight_batches <= 64:
            raise ValueError(f"max_inflight_batches is 1 to 64, not {self.max_inflight_batches}")
        if not 1 <= self.max_batch_bytes <= MAX_PAYLOAD_BYTES:
            raise ValueError(f"max_batch_bytes is 1 to {MAX_PAYLOAD_BYTES}, not {self.max_batch_bytes}")
        if min(self.max_batch_count, self.gather_bytes, self.max_pending_bytes) < 1:
            raise ValueError("max_batch_count, gather_bytes and max_pending_bytes are at least 1")


class FutureLike(Protocol):
    """What asyncio's and concurrent.futures' futures have in common."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...


def renewed(error: DLedgerError) -> DLedgerError:
    """The same error as a new object: one object raised in many tasks would collect all their tracebacks."""
    return type(error)(
        error.message, code=error.code, leader_id=error.leader_id, leader_address=error.leader_address
    )


def undecided(error: DLedgerError) -> DLedgerError:
    """`error` as an append's caller must see it when nothing certain is known of the entry."""
    if isinstance(error, Indeterminate):
        return renewed(error)
    return Indeterminate(error.message, code=error.code)


class Call:
    """One call of append or one atomic part of append_many: its bodies are never split."""

    __slots__ = ("alone", "attempts", "bodies", "deadline", "future", "single", "size")

    def __init__(self, bodies: Sequence[bytes], *, single: bool, future: FutureLike, deadline: float) -> None:
        self.bodies = bodies
        self.single = single  # the future gets one result, not a list
        self.future = future
        self.deadline = deadline  # of the loop's clock
        self.size = sum(map(len, bodies)) + ENTRY_HEADER_SIZE * len(bodies)
        self.alone = False  # must not share a batch: it may be what failed the last one
        self.attempts = 0  # told to the client's user; counted only if somebody wants to know

    def fail(self, error: DLedgerError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Batch:
    """Calls that were sent together. Never changes once sent: a session tells batches by seq and content."""

    __slots__ = ("attempts", "bodies", "calls", "seq", "size")

    def __init__(self, seq: int, calls: list[Call], size: int) -> None:
        self.seq = seq
        self.calls = calls
        self.size = size
        self.bodies = calls[0].bodies if len(calls) == 1 else [b for call in calls for b in call.bodies]
        self.attempts = 0

    def tell_attempt(self, hook: AttemptHook) -> None:
        """Each call's own: after a refusal it may travel in another batch."""
        for call in self.calls:
            call.attempts += 1
            hook(call.bodies, call.attempts)

    def succeed(self, answer: AppendAnswer) -> None:
        """Give each call its part of the answer."""
        if not answer.position_forgotten and answer.count != len(self.bodies):
            what = f"the server says that it stored {answer.count} of {len(self.bodies)} entries"
            self.fail(Indeterminate(what, code=Code.INTERNAL_ERROR))
            return
        results = self._results(answer)
        for call in self.calls:
            if call.single:
                result: Any = next(results)
            else:
                result = [next(results) for _ in call.bodies]
            if not call.future.done():
                call.future.set_result(result)

    def _results(self, answer: AppendAnswer) -> Iterator[AppendResult]:
        count = len(self.bodies)
        if answer.position_forgotten:
            return repeat(AppendResult(-1, answer.term, -1), count)
        # A batch lies in one file without gaps, so each entry starts where the one before ends.
        sizes = (len(body) + ENTRY_HEADER_SIZE for body in self.bodies)
        positions = accumulate(chain((answer.pos,), sizes))
        return map(AppendResult, range(answer.index, answer.index + count), repeat(answer.term), positions)

    def fail(self, error: DLedgerError) -> None:
        for call in self.calls:
            call.fail(renewed(error))


class Queue:
    """Calls not yet sent, in call order."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls: deque[Call] = deque()
        self.size = 0  # bytes

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, call: Call) -> None:
        self._calls.append(call)
        self.size += call.size

    def put_back(self, calls: Sequence[Call]) -> None:
        """Calls that were taken and not stored, in their old order: they are next again."""
        self._calls.extendleft(reversed(calls))
        self.size += sum(call.size for call in calls)

    def take(self) -> tuple[list[Call], int]:
        """Calls for the next batch, and their size; empty if nobody waits for an answer any more."""
        limits, waiting = self._limits, self._calls
        taken: list[Call] = []
        size, count, room = 0, 0, limits.max_batch_bytes - _SESSION_ENTRY_BYTES
        while waiting:
            call = waiting[0]
            if not call.future.done():
                count += len(call.bodies)
                if taken and (
                    size + call.size > room or count > limits.max_batch_count or call.alone or taken[0].alone
                ):
                    break
                taken.append(call)
                size += call.size
            waiting.popleft()
            self.size -= call.size
        return taken, size

    def drop_done(self) -> None:
        """Forget the calls whose callers were answered meanwhile, and so their bodies."""
        self._calls = deque(call for call in self._calls if not call.future.done())
        self.size = sum(call.size for call in self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)


def split(bodies: Sequence[bytes], limits: Limits) -> list[Sequence[bytes]]:
    """`bodies` in as few parts as fit a batch each. One part, the same object, if all fit.

    Raises InvalidRequest for a body that fits no message and for something that is not bytes.
    """
    room = limits.max_batch_bytes - _SESSION_ENTRY_BYTES
    parts: list[Sequence[bytes]] = []
    start, size = 0, 0
    for i, body in enumerate(bodies):
        check(body)
        size += len(body) + ENTRY_HEADER_SIZE
        if i > start and (size > room or i - start >= limits.max_batch_count):
            parts.append(bodies[start:i])
            start, size = i, len(body) + ENTRY_HEADER_SIZE
    parts.append(bodies[start:] if start else bodies)
    return parts


def check(body: bytes) -> None:
    """Raises InvalidRequest if no server could take `body`."""
    if not isinstance(body, bytes):
        raise InvalidRequest(f"a body is bytes, not {type(body).__name__}")
    if len(body) > MAX_PAYLOAD_BYTES - ENTRY_HEADER_SIZE - _SESSION_ENTRY_BYTES:
        raise InvalidRequest(f"a body of {len(body)} bytes fits no message", code=Code.BODY_TOO_LARGE)
