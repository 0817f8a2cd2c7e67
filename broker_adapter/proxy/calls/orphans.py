"""Asking producers what became of their transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker_adapter.pop.api import OrphanedHalf
from broker_adapter.proxy.messages.message_out import stored_message
from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls

_log = logging.getLogger(__name__)

#: (topic, client id, command) -> whether a producer was told.
TellProducer = Callable[[str, str, calls.TelemetryCommand], bool]


def ask_about(half: OrphanedHalf, tell: TellProducer) -> bool:
    """The producer that has sent it, or else another one of its topic. False: none is there; it is asked
    again when the next check is due."""
    command = calls.TelemetryCommand(
        recover_orphaned_transaction_command=calls.RecoverOrphanedTransactionCommand(
            message=stored_message(half.record, pb.Resource(name=half.topic)),
            transaction_id=half.transaction_id,
        )
    )
    if tell(half.topic, half.client_id, command):
        return True
    _log.info("transaction %s of %s: no producer to ask", half.transaction_id, half.topic)
    return False
