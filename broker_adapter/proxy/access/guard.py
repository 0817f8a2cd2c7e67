"""Access control as the front asks for it; the accounts are read again when their file changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from google.protobuf.message import Message

from broker_adapter.proxy.access.accounts import Account, Accounts, read_accounts
from broker_adapter.proxy.access.permissions import check
from broker_adapter.proxy.access.signatures import account_of
from broker_adapter.proxy.messages.methods import END_TRANSACTION
from broker_adapter.proxy.messages.rejected import Code, Rejected
from broker_adapter.proxy.v2.definition_pb2 import Resource
from broker_adapter.proxy.v2.service_pb2 import EndTransactionRequest, TelemetryCommand
from dledger import ConfigError
from dledger.platform import get_logger

_log = get_logger("access")

#: Device, inode, size and time of change of a file; None: it is not there.
_Signature = tuple[int, int, int, int] | None


class Guard:
    """On the event loop, but for `look`. ConfigError if the file is no good when it is made."""

    def __init__(self, path: Path, wall_s: Callable[[], float]) -> None:
        """`wall_s`: Unix time."""
        self._path = path
        self._wall_s = wall_s
        self._seen = _signature(path)
        self._complaint = ""
        self._take(read_accounts(path))

    def look(self) -> None:
        """Take over a changed file, if it is good. Reads files: call it now and then, from one thread."""
        seen = _signature(self._path)
        if seen == self._seen:
            return
        try:
            accounts = read_accounts(self._path)
        except ConfigError as error:
            if error.message != self._complaint:  # once, not with every look
                self._complaint = error.message
                _log.error("the new accounts are NOT used, the old ones stay", reason=error.message)
            return
        if _signature(self._path) == seen:  # else it is being written: the next look sees it whole
            self._seen, self._complaint = seen, ""
            self._take(accounts)
            _log.warning("accounts reloaded", accounts=len(accounts.accounts))

    def admit(self, metadata: Mapping[str, str], remote: str) -> str:
        """The access key of who has signed. Rejected (UNAUTHORIZED, FORBIDDEN)."""
        known, freshness_s = self._known
        account = account_of(metadata, known, now_s=self._wall_s(), freshness_s=freshness_s)
        if not account.may_come_from(remote):
            text = f"account {account.access_key} may not call from {remote or 'no IP address'}"
            raise Rejected(Code.FORBIDDEN, text)
        return account.access_key

    def account(self, access_key: str) -> Account | None:
        """As the file says now."""
        return self._known[0].get(access_key)

    def check(self, access_key: str, method: str, request: Message, namespace: str) -> None:
        """Rejected (FORBIDDEN; UNAUTHORIZED for an account that is gone)."""
        account = self.account(access_key)
        if account is None:
            raise Rejected(Code.UNAUTHORIZED, f"there is no account {access_key} any more")
        check(account, method, request, namespace)

    def may_end(self, access_key: str, topic: str) -> bool:
        """Whether the account may end transactions in a topic, and so see the messages asked about."""
        try:
            self.check(access_key, END_TRANSACTION, EndTransactionRequest(topic=Resource(name=topic)), "")
        except Rejected:
            return False
        return True

    def may_hear(self, access_key: str, command: TelemetryCommand) -> bool:
        """Whoever is asked about a transaction sees its message: he must be one who may end it."""
        if command.WhichOneof("command") != "recover_orphaned_transaction_command":
            return True
        return self.may_end(access_key, command.recover_orphaned_transaction_command.message.topic.name)

    def _take(self, accounts: Accounts) -> None:
        self._known: tuple[dict[str, Account], float] = accounts.by_key(), accounts.freshness_s


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
