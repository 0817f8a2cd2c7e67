"""Queued append calls, and the batches that contain them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, chain, repeat
from typing import Any, Protocol

from dledger.client.values import AppendResult, AttemptHook
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest
from dledger.infra.transport.channels import MAX_PAYLOAD_BYTES
from dledger.rpc.log_client import AppendAnswer

_log = logging.getLogger(__name__)

#: Size of the session entry, which a batch in a session contains besides its bodies, rounded up (bytes).
_SESSION_ENTRY_BYTES = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of batches. The defaults suit a cluster with default limits."""

    #: Calls are grouped into batches up to this size, headers included (bytes); a larger body is sent alone.
    max_batch_bytes: int = 1024 * 1024
    #: Maximum number of entries per batch.
    max_batch_count: int = 4096
    #: Batches sent and not yet answered. A session allows at most 64.
    max_inflight_batches: int = 8
    #: While a batch is in flight, calls are held until this many bytes are queued. A single call never waits.
    gather_bytes: int = 64 * 1024
    #: `submit` waits while more than this is queued or in flight (bytes).
    max_pending_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            if not isinstance(value := getattr(self, field.name), int):
                raise TypeError(f"{field.name} must be an integer, not {type(value).__name__}")
        if not 1 <= self.max_inflight_batches <= 64:
            raise ValueError(f"max_inflight_batches must be 1 to 64, not {self.max_inflight_batches}")
        if not 1 <= self.max_batch_bytes <= MAX_PAYLOAD_BYTES:
            raise ValueError(f"max_batch_bytes must be 1 to {MAX_PAYLOAD_BYTES}, not {self.max_batch_bytes}")
        if min(self.max_batch_count, self.gather_bytes, self.max_pending_bytes) < 1:
            raise ValueError("max_batch_count, gather_bytes and max_pending_bytes must be at least 1")


class FutureLike(Protocol):
    """The common interface of asyncio and concurrent.futures futures."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...


def renewed(error: DLedgerError) -> DLedgerError:
    """Copy an error. Raising one object in many tasks would accumulate all their tracebacks."""
    return type(error)(
        error.message, code=error.code, leader_id=error.leader_id, leader_address=error.leader_address
    )


def undecided(error: DLedgerError) -> DLedgerError:
    """Convert `error` to Indeterminate for the caller of an append, because it is unknown whether the entry
    was stored."""
    if isinstance(error, Indeterminate):
        return renewed(error)
    return Indeterminate(error.message, code=error.code)


class AppendCall:
    """One call of append or one atomic part of append_many. Its bodies are never split."""

    __slots__ = ("alone", "attempts", "bodies", "deadline", "future", "single", "size")

    def __init__(self, bodies: Sequence[bytes], *, single: bool, future: FutureLike, deadline: float) -> None:
        self.bodies = bodies
        self.single = single  # the future gets one result, not a list
        self.future = future
        self.deadline = deadline  # on the loop's clock
        self.size = sum(map(len, bodies)) + ENTRY_HEADER_SIZE * len(bodies)
        self.alone = False  # must be sent alone: it may have caused the failure of the last batch
        self.attempts = 0  # attempts reported to `on_attempt`; not counted without it

    def fail(self, error: DLedgerError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class CallBatch:
    """Calls sent together. Immutable once sent: a session identifies batches by seq and content."""

    __slots__ = ("attempts", "bodies", "calls", "seq", "size")

    def __init__(self, seq: int, calls: list[AppendCall], size: int) -> None:
        self.seq = seq
        self.calls = calls
        self.size = size
        self.bodies = calls[0].bodies if len(calls) == 1 else [b for call in calls for b in call.bodies]
        self.attempts = 0

    def report_attempt(self, hook: AttemptHook) -> None:
        """Report an attempt for each call, because after a refusal a call may be in another batch."""
        for call in self.calls:
            call.attempts += 1
            try:
                hook(call.bodies, call.attempts)
            except Exception:
                _log.exception("on_attempt raised an error, which is ignored")

    def succeed(self, answer: AppendAnswer) -> None:
        """Distribute the result to the calls."""
        if not answer.position_forgotten and answer.count != len(self.bodies):
            mismatch = f"the server reports that it stored {answer.count} of {len(self.bodies)} entries"
            self.fail(Indeterminate(mismatch, code=Code.INTERNAL_ERROR))
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
        # A batch is contiguous within one file, so each entry starts where the previous one ends.
        sizes = (len(body) + ENTRY_HEADER_SIZE for body in self.bodies)
        positions = accumulate(chain((answer.pos,), sizes))
        return map(AppendResult, range(answer.index, answer.index + count), repeat(answer.term), positions)

    def fail(self, error: DLedgerError) -> None:
        for call in self.calls:
            call.fail(renewed(error))


class CallQueue:
    """Calls not yet sent, in call order."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls: deque[AppendCall] = deque()
        self.size = 0  # bytes

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, call: AppendCall) -> None:
        self._calls.append(call)
        self.size += call.size

    def requeue(self, calls: Sequence[AppendCall]) -> None:
        """Return calls that were removed but not stored to the front of the queue, in their old order."""
        self._calls.extendleft(reversed(calls))
        self.size += sum(call.size for call in calls)

    def next_calls(self) -> tuple[list[AppendCall], int]:
        """Remove and return the calls of the next batch, and their size. Skips calls that are already
        done."""
        limits, waiting = self._limits, self._calls
        taken: list[AppendCall] = []
        size, count, capacity = 0, 0, limits.max_batch_bytes - _SESSION_ENTRY_BYTES
        while waiting:
            call = waiting[0]
            if not call.future.done():
                count += len(call.bodies)
                if taken and (
                    size + call.size > capacity
                    or count > limits.max_batch_count
                    or call.alone
                    or taken[0].alone
                ):
                    break
                taken.append(call)
                size += call.size
            waiting.popleft()
            self.size -= call.size
        return taken, size

    def drop_done(self) -> None:
        """Drop calls that have been answered in the meantime, with their bodies."""
        self._calls = deque(call for call in self._calls if not call.future.done())
        self.size = sum(call.size for call in self._calls)

    def __iter__(self) -> Iterator[AppendCall]:
        return iter(self._calls)


def split(bodies: Sequence[bytes], limits: Limits) -> list[Sequence[bytes]]:
    """Split `bodies` into the fewest parts that each fit into a batch. Returns the same object if all bodies
    fit into one.

    Raises InvalidRequest if a body is too large for a message or is not bytes.
    """
    capacity = limits.max_batch_bytes - _SESSION_ENTRY_BYTES
    parts: list[Sequence[bytes]] = []
    start, size = 0, 0
    for i, body in enumerate(bodies):
        check(body)
        size += len(body) + ENTRY_HEADER_SIZE
        if i > start and (size > capacity or i - start >= limits.max_batch_count):
            parts.append(bodies[start:i])
            start, size = i, len(body) + ENTRY_HEADER_SIZE
    parts.append(bodies[start:] if start else bodies)
    return parts


def check_timeout(seconds: float | None) -> None:
    """Raise InvalidRequest unless `seconds` is a positive number, or None for the default of the client."""
    if seconds is None:
        return
    if not isinstance(seconds, int | float):
        raise InvalidRequest(f"a timeout must be a number of seconds, not {type(seconds).__name__}")
    if not seconds > 0:
        raise InvalidRequest(f"a timeout must be more than 0 seconds, not {seconds}")


def check_integer(name: str, value: object, least: int) -> None:
    """Raise InvalidRequest unless `value` is a 64-bit integer of at least `least`."""
    if not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {type(value).__name__}")
    if not least <= value < 1 << 63:
        raise InvalidRequest(f"{name} must be a 64-bit integer of at least {least}, not {value}")


def check(body: bytes) -> None:
    """Raise InvalidRequest if no server can accept `body`."""
    if not isinstance(body, bytes):
        raise InvalidRequest(f"a body must be bytes, not {type(body).__name__}")
    if len(body) > MAX_PAYLOAD_BYTES - ENTRY_HEADER_SIZE - _SESSION_ENTRY_BYTES:
        raise InvalidRequest(
            f"the body of {len(body)} bytes is too large for a message", code=Code.BODY_TOO_LARGE
        )
