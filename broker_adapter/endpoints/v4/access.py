"""Access control of the remoting protocol: signatures of RocketMQ 4.x, with the accounts of the RocketMQ 5
endpoint.

Only administrators may send codes without a row in the table of request codes.
"""

from __future__ import annotations

from typing import Protocol

from broker_adapter.endpoints.access.accounts import Account, Right
from broker_adapter.endpoints.access.permissions import RequiredRight, missing
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4.pulls import CheckRead
from broker_adapter.endpoints.v4.requests import ADMINISTRATORS, ROWS
from broker_adapter.errors import RemotingRefused, Status
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.signing import ACCESS_KEY, SIGNATURE, is_signed_with


class AccountLookup(Protocol):
    """Account lookup by access key."""

    def account(self, access_key: str) -> Account | None: ...


class RemotingAccess:
    """An RpcHook that checks signatures and rights.

    Raises RemotingRefused: NOT_AUTHENTICATED, NOT_PERMITTED.
    """

    def __init__(self, accounts: AccountLookup) -> None:
        self._accounts = accounts

    def before(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        account = self._signer(connection.peer, request)
        if account.admin:
            return
        row = ROWS.get(request.code)
        if row is None or row.rights is ADMINISTRATORS:
            text = f"account {account.access_key} is not an administrator; code {request.code} requires one"
            raise RemotingRefused(Status.NOT_PERMITTED, text)
        if problem := missing(account, row.rights(request)):
            raise RemotingRefused(Status.NOT_PERMITTED, problem)

    def after(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand
    ) -> None:
        """Do nothing: responses are not signed."""

    def check_read(self, access_key: str, topic: str) -> None:
        """Check the right to read a message whose topic is known only after the lookup.

        Raises RemotingRefused (NOT_PERMITTED).
        """
        account = self._accounts.account(access_key)
        if account is None:
            raise RemotingRefused(Status.NOT_PERMITTED, f"account {access_key[:64]!r} does not exist")
        if not account.admin and (problem := missing(account, [RequiredRight(False, topic, Right.SUB)])):
            raise RemotingRefused(Status.NOT_PERMITTED, problem)

    def _signer(self, peer: str, request: RemotingCommand) -> Account:
        key = request.fields.get(ACCESS_KEY, "")
        if not key or SIGNATURE not in request.fields:
            raise _unknown("this broker requires signed requests, but AccessKey or Signature is missing")
        account = self._accounts.account(key)
        if account is None:
            raise _unknown(f"no account has the access key {key[:64]!r}")
        if not is_signed_with(request, account.secret.get_secret_value()):
            raise _unknown(f"Check signature failed for accessKey={key}")
        if not account.may_come_from(peer):
            raise RemotingRefused(Status.NOT_PERMITTED, f"account {key} may not call from {peer}")
        return account


def read_check(access: RemotingAccess | None) -> CheckRead:
    """Return a check that rejects topics that the caller may not read. If there are no accounts, it accepts
    all topics.

    The check raises RemotingRefused (NOT_PERMITTED).
    """

    def check(context: CallContext, topic: str) -> None:
        if access is not None:
            access.check_read(context.account, topic)

    return check


def _unknown(problem: str) -> RemotingRefused:
    return RemotingRefused(Status.NOT_AUTHENTICATED, problem)
