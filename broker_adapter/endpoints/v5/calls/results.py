"""Combines the statuses of the entries of a request."""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter.endpoints.rejected import ELSEWHERE, Code, Rejected, status_of
from broker_adapter.errors import BrokerError
from broker_adapter.v2 import definition_pb2 as pb


def joint(statuses: Sequence[pb.Status]) -> pb.Status:
    """Return the status of the whole request: the status of all entries if they are equal, otherwise
    MULTIPLE_RESULTS.
    """
    first = statuses[0]
    if all(status.code == first.code for status in statuses):
        return first
    return pb.Status(code=Code.MULTIPLE_RESULTS, message="the entries have different results")


def status_or_raise(error: BaseException, otherwise: Code = Code.INTERNAL_SERVER_ERROR) -> pb.Status:
    """Return the status of an entry for its error. If the error concerns the whole request, raises it."""
    if isinstance(error, Rejected):
        return status_of(error)
    if isinstance(error, BrokerError) and error.status not in ELSEWHERE:
        return status_of(error, otherwise)
    raise error
