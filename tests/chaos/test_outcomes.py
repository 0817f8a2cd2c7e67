"""fail is said only of what certainly did not happen."""

from __future__ import annotations

import asyncio

import pytest

from broker_adapter import errors as broker
from chaos.trace.outcomes import (
    BROKER_FAILS,
    LOG_FAILS,
    READ_ONLY,
    REPEATED,
    ClientError,
    classify,
)
from chaos.trace.schema import SENDS, OpType
from dledger import errors as log


@pytest.mark.parametrize("code", [code for code in log.Code if code is not log.Code.SUCCESS])
def test_each_code_of_the_log(code: log.Code) -> None:
    error = log.error_for(int(code), "x")
    classification = classify(error, "append")
    assert classification.code == f"{int(code)} {code.name}"
    if classification.outcome is OpType.FAIL:
        assert isinstance(error, log.Refused | log.InvalidRequest | log.ConfigError)
    if isinstance(error, log.Indeterminate | log.StorageError):
        assert classification.outcome is OpType.INFO


@pytest.mark.parametrize("status", list(broker.Status))
def test_each_status_of_the_broker(status: broker.Status) -> None:
    error = broker.error_for(status, "x")
    classification = classify(error, "send")
    assert classification.code == f"{int(status)} {status.name}"
    if classification.outcome is OpType.FAIL:
        assert isinstance(error, broker.PutRefused | broker.TopicRefused | broker.IllegalMessage)
    if isinstance(error, broker.PutIndeterminate | broker.StoredDataDamaged):
        assert classification.outcome is OpType.INFO


def test_what_clients_repeat_by_themselves_has_never_failed_for_certain() -> None:
    refused = broker.error_for(broker.Status.NOT_MASTER, "x")
    assert classify(refused, "send").outcome is OpType.FAIL
    assert {classify(refused, f).outcome for f in REPEATED} == {OpType.INFO}
    assert not REPEATED & {*READ_ONLY, *SENDS}


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        asyncio.CancelledError(),
        ConnectionResetError("gone"),
        RuntimeError("?"),
        log.Indeterminate("x", code=log.Code.EXPIRED_TERM),
        log.error_for(99999, "of a newer version"),
    ],
)
def test_what_nobody_knows_is_info(error: BaseException) -> None:
    assert classify(error, "append").outcome is OpType.INFO


def test_a_read_that_fails_has_changed_nothing() -> None:
    assert classify(TimeoutError(), "get").outcome is OpType.FAIL
    assert not READ_ONLY & {*SENDS, "commit_off", "subscribe", "txn_commit"}


def test_what_is_common_on_bad_days_is_told_apart() -> None:
    assert log.Code.NOT_LEADER in LOG_FAILS and log.Code.WAIT_QUORUM_ACK_TIMEOUT not in LOG_FAILS
    assert log.Code.TERM_CHANGED not in LOG_FAILS and log.Code.NETWORK_ERROR not in LOG_FAILS
    assert broker.Status.NOT_MASTER in BROKER_FAILS and broker.Status.OUTCOME_UNKNOWN not in BROKER_FAILS


HA_NOT_AVAILABLE, INVALID_RECEIPT_HANDLE, MASTER_PERSISTENCE_TIMEOUT = 50002, 40013, 50401
NOT_FOUND = 40400


@pytest.mark.parametrize(
    ("f", "kind", "code", "outcome"),
    [
        ("send", "PayloadTooLargeException", 41301, OpType.FAIL),
        ("send", "IllegalArgumentException", 0, OpType.FAIL),
        # The last of three attempts: one before it may have been stored.
        ("send", "InternalErrorException", HA_NOT_AVAILABLE, OpType.INFO),
        ("send", "TooManyRequestsException", 42900, OpType.INFO),
        ("send", "ProxyTimeoutException", MASTER_PERSISTENCE_TIMEOUT, OpType.INFO),
        ("send", "AioRpcError", 0, OpType.INFO),
        ("ack", "InternalErrorException", HA_NOT_AVAILABLE, OpType.FAIL),
        ("txn_begin", "InternalErrorException", HA_NOT_AVAILABLE, OpType.INFO),
        ("txn_commit", "InternalErrorException", HA_NOT_AVAILABLE, OpType.INFO),
        ("recall", "InternalErrorException", HA_NOT_AVAILABLE, OpType.FAIL),
        ("recall", "NotFoundException", NOT_FOUND, OpType.FAIL),
        ("ack", "NotFoundException", NOT_FOUND, OpType.INFO),
        ("ack", "ProxyTimeoutException", MASTER_PERSISTENCE_TIMEOUT, OpType.INFO),
        # The broker repeats acks automatically: the first one may have counted.
        ("ack", "BadRequestException", INVALID_RECEIPT_HANDLE, OpType.INFO),
        ("receive", "AioRpcError", 0, OpType.INFO),
    ],
)
def test_what_a_released_client_raises(f: str, kind: str, code: int, outcome: OpType) -> None:
    classification = classify(ClientError(kind, code, "x"), f)
    assert (classification.outcome, classification.code) == (outcome, f"{code} {kind}")
