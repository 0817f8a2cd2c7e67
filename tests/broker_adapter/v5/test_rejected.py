"""Whose fault an error is, as clients of RocketMQ 5 are told."""

from __future__ import annotations

import pytest

from broker_adapter.endpoints.rejected import Code, status_of
from broker_adapter.errors import IllegalMessage, Status, error_for
from broker_adapter.v2 import definition_pb2 as pb
from tests.broker_adapter.v5.world import message, world

ILLEGAL = [status for status in Status if isinstance(error_for(status, "x"), IllegalMessage)]


@pytest.mark.parametrize("status", ILLEGAL)
def test_what_is_wrong_with_a_call_is_no_error_of_the_server(status: Status) -> None:
    told = status_of(error_for(status, "x"))
    assert 40_000 <= told.code < 50_000 and told.message == f"{int(status)} x"


def test_a_code_that_a_call_gives_its_own_errors_stays() -> None:
    error = error_for(Status.DELAY_TOO_LONG, "x")
    assert status_of(error, Code.INVALID_TRANSACTION_ID).code == Code.INVALID_TRANSACTION_ID


async def test_a_half_message_that_is_asked_about_too_late_is_refused_as_a_bad_request() -> None:
    half = message(message_type=pb.MessageType.TRANSACTION)
    half.system_properties.orphaned_transaction_recovery_duration.seconds = 1_700_000_000
    async with world() as w:
        answer = await w.send(half)
        assert answer.entries[0].status.code == answer.status.code == Code.BAD_REQUEST
