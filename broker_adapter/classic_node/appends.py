"""Records into a classic CommitLog, while this broker is its master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from broker_adapter.classic.commit_log_files import CommitLogFiles
from broker_adapter.classic_node.group_commit import ClassicOutcome, GroupCommit
from broker_adapter.classic_node.records import TERM
from broker_adapter.classic_node.roles import RoleTeller
from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.format.sys_flag import TRANSACTION_PREPARED
from broker_adapter.log.protocol import Fill, Places
from dledger import AppendOutcome, Code, InvalidRequest, NotLeader, Overloaded

#: RocketMQ's words for a request that comes while isOSPageCacheBusy.
_BUSY = "[REJECTREQUEST]system busy, start flow control for a while"


class ClassicAppends:
    """Implements AppendLog. On the event loop.

    What a broker of RocketMQ does not know, it must not give to consumers: commands are marked as prepared,
    which has no place in a queue there.
    """

    record_overhead = 0
    command_sys_flag = TRANSACTION_PREPARED

    _log: CommitLogFiles
    _commit: GroupCommit

    def __init__(
        self,
        roles: RoleTeller,
        now_ms: Callable[[], int],
        *,
        max_batch_bytes: int,
        max_pending_bytes: int,
        timeout_ms: int,
        busy_ms: int,
        on_grown: Callable[[], None],
        on_failure: Callable[[BrokerError], None],
    ) -> None:
        """`timeout_ms`: of appends that name none. `busy_ms`: while one has waited longer for the disk, no
        further one is taken. `on_grown`: the log has more."""
        self.is_stopping = False
        self._roles = roles
        self._now_ms = now_ms
        self._max_batch_bytes = max_batch_bytes
        self._max_pending_bytes = max_pending_bytes
        self._timeout_ms = timeout_ms
        self._busy_ms = busy_ms
        self._on_grown = on_grown
        self._on_failure = on_failure

    def open(self, log: CommitLogFiles, commit: GroupCommit) -> None:
        """Before a role is taken."""
        self._log = log
        self._commit = commit

    def cluster_time_ms(self) -> int:
        return self._now_ms()

    def shortfall(self, outcome: AppendOutcome) -> asyncio.Future[Status | None] | None:
        if not isinstance(outcome, ClassicOutcome) or outcome.copied is not None:
            return outcome.copied if isinstance(outcome, ClassicOutcome) else None
        if outcome.shortfall is None:
            return None
        found: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()
        found.set_result(outcome.shortfall)
        return found

    async def shortfall_of_all(self, timeout_ms: int) -> Status | None:
        acknowledged = self._commit.acknowledged
        return None if acknowledged is None else await acknowledged(self._log.end_offset, timeout_ms)

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout_ms: int = 0
    ) -> asyncio.Future[AppendOutcome]:
        """NotLeader, Overloaded, InvalidRequest, Busy (DISK_FULL, OS_PAGE_CACHE_BUSY): nothing was stored.
        PutIndeterminate (LOG_FAILED): nobody knows, and the broker stops."""
        self._check(sizes, expected)
        log = self._log
        log.make_room(sizes)  # before queue offsets are taken
        begin, offsets = log.end_offset, log.place(sizes)
        records = fill(Places(offsets, expected[0], offsets, self._now_ms()))
        if list(map(len, records)) != list(sizes):
            raise ValueError(f"fill gave records of {list(map(len, records))} bytes, not of {list(sizes)}")
        try:
            log.append(records)
        except BrokerError as error:
            self._on_failure(error)
            raise
        outcome = ClassicOutcome(offsets[0], len(sizes), TERM, offsets[0])
        answered = self._commit.appended(begin, log.end_offset, outcome, timeout_ms or self._timeout_ms)
        self._on_grown()
        return answered

    def _check(self, sizes: Sequence[int], expected: tuple[int, int]) -> None:
        event = self._roles.current
        if self.is_stopping or event is None or not self._roles.leads:
            raise NotLeader("this broker is no master")
        if (event.term, event.role_epoch) != expected:
            raise NotLeader("this broker became master again since", code=Code.ROLE_EPOCH_CHANGED)
        if (oldest_ms := self._commit.oldest_ms) > self._busy_ms:
            text = f"{_BUSY}: the oldest append has waited {oldest_ms} ms for the disk"
            raise error_for(Status.OS_PAGE_CACHE_BUSY, text)
        if not sizes:
            raise InvalidRequest("a batch has at least one record", code=Code.REQUEST_WITH_EMPTY_BODYS)
        size = sum(sizes)
        if size > self._max_batch_bytes:
            raise InvalidRequest(f"a batch of {size} bytes; {self._max_batch_bytes} may be")
        if self._commit.pending_bytes + size > self._max_pending_bytes:
            raise Overloaded("too many bytes wait for the disk or a slave", code=Code.LEADER_PENDING_FULL)
