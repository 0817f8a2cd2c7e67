"""The broker's errors: every reason has a class and a code that RocketMQ's clients know."""

from __future__ import annotations

import pytest

import dledger
from broker_adapter import errors
from broker_adapter.errors import BrokerError, NotMaster, ResponseCode, Status, error_for


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SUCCESS", 0),
        ("SYSTEM_ERROR", 1),
        ("SYSTEM_BUSY", 2),
        ("REQUEST_CODE_NOT_SUPPORTED", 3),
        ("MESSAGE_ILLEGAL", 13),
        ("SERVICE_NOT_AVAILABLE", 14),
        ("NO_PERMISSION", 16),
        ("TOPIC_NOT_EXIST", 17),
        ("PULL_NOT_FOUND", 19),
        ("PULL_RETRY_IMMEDIATELY", 20),
        ("PULL_OFFSET_MOVED", 21),
        ("QUERY_NOT_FOUND", 22),
        ("SUBSCRIPTION_GROUP_NOT_EXIST", 26),
    ],
)
def test_response_codes_are_those_of_rocketmq(name: str, number: int) -> None:
    assert ResponseCode[name] == number


def test_no_response_code_of_a_failure_is_one_that_producers_count_as_sent() -> None:
    stored = {Status.FLUSH_DISK_TIMEOUT: 10, Status.SLAVE_NOT_AVAILABLE: 11, Status.FLUSH_SLAVE_TIMEOUT: 12}
    counted = {status: code for status in Status if (code := status.response_code) in {0, 10, 11, 12}}
    assert counted == stored, "only a message that is stored counts as sent"


def test_the_numbers_of_the_broker_and_of_the_log_differ() -> None:
    assert not {int(status) for status in Status} & {int(code) for code in dledger.Code}
    assert min(Status) >= 700


@pytest.mark.parametrize("status", Status)
def test_every_status_makes_an_error_that_says_its_number_and_reason(status: Status) -> None:
    error = error_for(status, "because", master_address="10.0.0.1:10911")
    assert error.status is status and error.response_code is status.response_code
    assert type(error) is not BrokerError
    assert str(error) == f"{int(status)} {status.name}: because"


def test_an_error_of_a_slave_names_the_master() -> None:
    error = error_for(Status.NOT_MASTER, "this is a slave", master_address="10.0.0.1:10911")
    assert isinstance(error, NotMaster) and error.master_address == "10.0.0.1:10911"
    assert error.response_code == 14
    assert NotMaster("nobody knows").master_address is None


def test_each_refusal_has_a_status_of_its_own() -> None:
    """Not master, shutting down, flow control and disk full share codes, but not their numbers."""
    refused = {status for status in Status if isinstance(error_for(status, ""), errors.PutRefused)}
    assert refused == {
        Status.NOT_MASTER,
        Status.SHUTTING_DOWN,
        Status.TOO_MANY_PENDING_BYTES,
        Status.DISK_FULL,
        Status.TOO_MANY_CALLS,
        Status.NOT_CONNECTED,
        Status.TOO_MANY_HELD_MESSAGES,
        Status.OS_PAGE_CACHE_BUSY,
        Status.TOPIC_CHANGED,
        Status.TOO_MANY_TOPICS,
        Status.TOO_MANY_GROUPS,
        Status.TOO_MANY_MEMBERS,
        Status.TOO_MANY_PROPOSALS,
        Status.REBALANCING,
        Status.IMPORT_OUT_OF_ORDER,
        Status.TAKEOVER_BLOCKED,
        Status.LOG_OFFSET,
        Status.ROLE_CHANGE_BLOCKED,
    }
