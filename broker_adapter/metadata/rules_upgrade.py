"""Raises the rules version of a log that an older release has written."""

from __future__ import annotations

import asyncio

import structlog
import tenacity

from broker_adapter.errors import BrokerError
from broker_adapter.metadata.commands import SetRulesVersion
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from dledger import RULES_VERSION

_log = structlog.get_logger(part="rules")

_FIRST_RETRY_S = 0.01
_LONGEST_RETRY_S = 1.0


class RulesUpgrade:
    """Proposes the rules version of this release. Implements `broker_adapter.role.broker_role.MasterService`.

    When the command is written, all nodes of the group run this release, because the handshake rejects nodes
    with other rules. Every node applies earlier entries under the old rules. A node that starts from an image
    and a node that replays the log therefore derive the same state.
    """

    def __init__(self, metadata: MetadataState, proposals: Proposals) -> None:
        self._metadata = metadata
        self._proposals = proposals
        self._task: asyncio.Task[None] | None = None

    def start(self, term: int, role_epoch: int) -> None:
        if self._metadata.rules_version < RULES_VERSION:
            self._task = asyncio.create_task(self._raise(), name="rules-upgrade")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _raise(self) -> None:
        """Propose the command until it has been applied.

        Early proposals may fail, because writes are enabled shortly after `start`. Proposals also fail while
        the disk is full.
        """
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(BrokerError),
            wait=tenacity.wait_exponential(multiplier=_FIRST_RETRY_S, max=_LONGEST_RETRY_S),
            sleep=asyncio.sleep,
        ):
            with attempt:
                outcome = (await self._proposals.propose(SetRulesVersion(RULES_VERSION))).check()
        _log.info("raised the rules version of the log", rules_version=RULES_VERSION, index=outcome.index)
