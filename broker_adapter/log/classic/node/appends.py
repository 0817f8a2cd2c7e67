"""Appends to a classic CommitLog while this broker is master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.log.classic.append_heads import SUM_SIZE, encode_head, head_size
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.node.group_commit import ClassicOutcome, GroupCommit
from broker_adapter.log.classic.node.records import TERM
from broker_adapter.log.classic.node.roles import RoleNotifier
from broker_adapter.log.protocol import Fill, Places
from broker_adapter.wire.host import Host
from broker_adapter.wire.sys_flag import TRANSACTION_PREPARED
from dledger import AppendOutcome, Code, InvalidRequest, NotLeader, Overloaded

# RocketMQ's text for a refused request during isOSPageCacheBusy.
_BUSY = "[REJECTREQUEST]system busy, start flow control for a while"


class ClassicAppends:
    """Appends to a classic log. Implements AppendLog; runs on the event loop.

    Commands are marked as prepared half messages, which RocketMQ does not put into queues. A RocketMQ broker
    that uses the store therefore never delivers them.
    """

    record_overhead = SUM_SIZE
    command_sys_flag = TRANSACTION_PREPARED

    _log: CommitLogFiles
    _commit: GroupCommit

    def __init__(
        self,
        roles: RoleNotifier,
        now_ms: Callable[[], int],
        steps_ms: Callable[[], int],
        *,
        store_host: Host,
        max_batch_bytes: int,
        max_pending_bytes: int,
        timeout_ms: int,
        busy_ms: int,
        on_grown: Callable[[], None],
        on_failure: Callable[[BrokerError], None],
    ) -> None:
        """Create the appending side of a node; call `open` before its first role.

        `store_host`: store host of append heads. `timeout_ms`: default append timeout. `busy_ms`: new appends
        are refused while an append has been waiting for the disk longer than this. `on_grown`: called after
        each append.
        """
        self.is_stopping = False
        self._roles = roles
        self._now_ms = now_ms
        self._steps_ms = steps_ms
        self._store_host = store_host
        self._max_batch_bytes = max_batch_bytes
        self._max_pending_bytes = max_pending_bytes
        self._timeout_ms = timeout_ms
        self._busy_ms = busy_ms
        self._on_grown = on_grown
        self._on_failure = on_failure

    def open(self, log: CommitLogFiles, commit: GroupCommit) -> None:
        """Set the log. Call before the first role."""
        self._log = log
        self._commit = commit

    def cluster_time_ms(self) -> int:
        return self._now_ms()

    @property
    def steps_ms(self) -> int:
        return self._steps_ms()

    def put_status(self, outcome: AppendOutcome) -> asyncio.Future[Status | None] | None:
        if not isinstance(outcome, ClassicOutcome) or outcome.copied is not None:
            return outcome.copied if isinstance(outcome, ClassicOutcome) else None
        if outcome.put_status is None:
            return None
        found: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()
        found.set_result(outcome.put_status)
        return found

    async def put_status_of_all(self, timeout_ms: int) -> Status | None:
        acknowledged = self._commit.acknowledged
        return None if acknowledged is None else await acknowledged(self._log.end_offset, timeout_ms)

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout: float | None = None
    ) -> asyncio.Future[AppendOutcome]:
        """Append a batch.

        Raises NotLeader, Overloaded, InvalidRequest or Busy (DISK_FULL, OS_PAGE_CACHE_BUSY) if nothing was
        stored. Raises PutIndeterminate (LOG_FAILED) if the outcome is unknown; the broker then stops.
        """
        head = [head_size(len(sizes), self._store_host)] if len(sizes) > 1 else []
        all_sizes = [*head, *sizes]
        self._check(all_sizes, expected)
        log = self._log
        log.make_room(all_sizes)  # before queue offsets are assigned
        begin, places = log.end_offset, log.place(all_sizes)
        offsets = places[len(head) :]
        now_ms = self._now_ms()
        records = fill(Places(offsets, expected[0], offsets, now_ms, self._steps_ms()))
        if list(map(len, records)) != list(sizes):
            raise ValueError(
                f"fill returned records of {list(map(len, records))} bytes instead of {list(sizes)}"
            )
        if head:
            records = [encode_head(records, self._store_host, places[0], now_ms), *records]
        try:
            log.append(records)
        except BrokerError as error:
            self._on_failure(error)
            raise
        outcome = ClassicOutcome(offsets[0], len(sizes), TERM, offsets[0])
        timeout_ms = self._timeout_ms if timeout is None else round(timeout * 1000)
        answered = self._commit.appended(begin, log.end_offset, outcome, timeout_ms)
        self._on_grown()
        return answered

    def _check(self, sizes: Sequence[int], expected: tuple[int, int]) -> None:
        event = self._roles.current
        if self.is_stopping or event is None or not self._roles.leads:
            raise NotLeader("this broker is not the master")
        if (event.term, event.role_epoch) != expected:
            raise NotLeader(
                "this broker has lost mastership and become master again in the meantime",
                code=Code.ROLE_EPOCH_CHANGED,
            )
        if (oldest_ms := self._commit.oldest_ms) > self._busy_ms:
            text = f"{_BUSY}: the oldest append has waited {oldest_ms} ms for the disk"
            raise error_for(Status.OS_PAGE_CACHE_BUSY, text)
        if not sizes:
            raise InvalidRequest("a batch needs at least one record", code=Code.REQUEST_WITH_EMPTY_BODYS)
        size = sum(sizes)
        if size > self._max_batch_bytes:
            raise InvalidRequest(f"the batch is {size} bytes long; the limit is {self._max_batch_bytes}")
        if self._commit.pending_bytes + size > self._max_pending_bytes:
            raise Overloaded(
                "too many bytes are waiting for the disk or a slave; try again later",
                code=Code.LEADER_PENDING_FULL,
            )
