"""Checks the signature and permissions of calls; reloads the accounts when their file changes."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from hashlib import sha1
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from broker_adapter.endpoints.access.accounts import Account, Accounts, read_accounts
from broker_adapter.endpoints.access.permissions import check
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.messages.methods import END_TRANSACTION
from broker_adapter.v2.definition_pb2 import Resource
from broker_adapter.v2.service_pb2 import EndTransactionRequest, TelemetryCommand
from dledger import ConfigError
from dledger.infra.logs import get_logger

_log = get_logger("access")

#: Device, inode, size and modification time of a file; None if it does not exist.
_FileState = tuple[int, int, int, int] | None


def signature_time(members: Collection[str], cluster_time_ms: Callable[[], int]) -> Callable[[], float]:
    """Return the Unix time to which the dates of signatures are compared.

    This is cluster time, so that a member with a wrong clock does not reject calls. The only member of a
    cluster uses its own clock, because cluster time lags behind that clock after a restart.
    """
    return time.time if len(members) == 1 else lambda: cluster_time_ms() / 1000


class Guard:
    """Access control. Runs on the event loop, except for `reload_changed_files`.

    The constructor raises ConfigError if the file is invalid.
    """

    def __init__(self, path: Path, now_s: Callable[[], float]) -> None:
        """`now_s`: Unix time, see `signature_time`."""
        self._path = path
        self._now_s = now_s
        self._seen = _file_state(path)
        self._complaint = ""
        self._use(read_accounts(path))

    def reload_changed_files(self) -> None:
        """Reload the file if it has changed and is valid.

        Call this method periodically, always on the same thread, because it reads files.
        """
        seen = _file_state(self._path)
        if seen == self._seen:
            return
        try:
            accounts = read_accounts(self._path)
        except ConfigError as error:
            if error.message != self._complaint:  # log each problem once
                self._complaint = error.message
                _log.error("invalid accounts file: keeping the previous accounts", reason=error.message)
            return
        # otherwise the file is still being written, and the next call reads it
        if _file_state(self._path) == seen:
            self._seen, self._complaint = seen, ""
            self._use(accounts)
            _log.warning("accounts reloaded", accounts=len(accounts.accounts))

    def admit(self, metadata: Mapping[str, str], remote: str) -> str:
        """Return the access key of the account that signed the call.

        Raises Rejected: UNAUTHORIZED, FORBIDDEN.
        """
        known, freshness_s = self._known
        account = account_of(metadata, known, now_s=self._now_s(), freshness_s=freshness_s)
        if not account.may_come_from(remote):
            text = f"account {account.access_key} may not call from {remote or 'no IP address'}"
            raise Rejected(Code.FORBIDDEN, text)
        return account.access_key

    def account(self, access_key: str) -> Account | None:
        """Return the account as of the last reload."""
        return self._known[0].get(access_key)

    def check(self, access_key: str, method: str, request: Message, namespace: str) -> None:
        """Check a permission.

        Raises Rejected with FORBIDDEN, or with UNAUTHORIZED if the account no longer exists.
        """
        account = self.account(access_key)
        if account is None:
            raise Rejected(Code.UNAUTHORIZED, f"account {access_key} no longer exists")
        check(account, method, request, namespace)

    def may_end(self, access_key: str, topic: str) -> bool:
        """Return True if the account may end transactions in a topic and see their half messages."""
        try:
            self.check(access_key, END_TRANSACTION, EndTransactionRequest(topic=Resource(name=topic)), "")
        except Rejected:
            return False
        return True

    def may_receive(self, access_key: str, command: TelemetryCommand) -> bool:
        """Return True if the account may receive a command.

        A transaction check contains the message, so the account must have the right to end the transaction.
        """
        if command.WhichOneof("command") != "recover_orphaned_transaction_command":
            return True
        return self.may_end(access_key, command.recover_orphaned_transaction_command.message.topic.name)

    def _use(self, accounts: Accounts) -> None:
        self._known: tuple[dict[str, Account], float] = accounts.by_key(), accounts.freshness_s


def _file_state(path: Path) -> _FileState:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"

_ALGORITHM = "MQv2-HMAC-SHA1"
_DATE_FORM = "%Y%m%dT%H%M%SZ"
_MAX_LENGTH = 4_096


def account_of(
    metadata: Mapping[str, str], accounts: Mapping[str, Account], *, now_s: float, freshness_s: float
) -> Account:
    """Return the account that signed a call. `now_s`: Unix time. Raises Rejected (UNAUTHORIZED)."""
    text = metadata.get(AUTHORIZATION, "")
    if not text or len(text) > _MAX_LENGTH:
        raise _unauthorized("this server requires signed calls; the call metadata has no valid signature")
    fields = _fields(text)
    # A region and a service name follow the access key. They are not used.
    key = fields.get("Credential", "").partition("/")[0]
    account = accounts.get(key)
    if account is None:
        raise _unauthorized(f"Username is not matched: no account has the access key {key[:64]!r}")
    date = metadata.get(DATE_TIME, "")
    if not hmac.compare_digest(_signature(account, date), _from_hex(fields.get("Signature", ""))):
        raise _unauthorized(f"Check signature failed for accessKey={key}")
    _check_date(date, now_s, freshness_s)
    return account


def _signature(account: Account, date: str) -> bytes:
    return hmac.new(account.secret.get_secret_value().encode(), date.encode(), sha1).digest()


def _from_hex(text: str) -> bytes:
    """Decode hexadecimal text of either case. For invalid text, return b"", which matches no signature."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _fields(text: str) -> dict[str, str]:
    algorithm, _, rest = text.strip().partition(" ")
    if algorithm != _ALGORITHM:
        raise _unauthorized(f"the signature algorithm must be {_ALGORITHM}")
    pairs = (part.strip().partition("=") for part in rest.split(","))
    return {name: value for name, _, value in pairs}


def _check_date(date: str, now_s: float, freshness_s: float) -> None:
    try:
        at_s = datetime.strptime(date, _DATE_FORM).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _unauthorized(f"{DATE_TIME} {date[:64]!r} is not a time like 20260131T235959Z") from None
    if abs(now_s - at_s) > freshness_s:
        raise _unauthorized(
            f"{DATE_TIME} {date} differs by more than {freshness_s:.0f} s from the server's time: check "
            "the clocks"
        )


def _unauthorized(text: str) -> Rejected:
    return Rejected(Code.UNAUTHORIZED, text)
