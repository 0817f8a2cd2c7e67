"""Who may ask what over the remoting protocol: signatures of RocketMQ 4.x, accounts as for RocketMQ 5.

A code that is not in the table is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from broker_adapter.errors import RemotingRefused, Status
from broker_adapter.format.topic_names import RETRY_PREFIX
from broker_adapter.processor import bodies
from broker_adapter.processor.fields import long_names, text
from broker_adapter.processor.transactions import named
from broker_adapter.proxy.access.accounts import Account, Right
from broker_adapter.proxy.access.permissions import Need, missing
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.signing import ACCESS_KEY, SIGNATURE, is_signed_with

Needs: TypeAlias = Callable[[RemotingCommand], Iterator[Need]]
_EITHER = Right.PUB | Right.SUB


class KnowsAccounts(Protocol):
    """By access key."""

    def account(self, access_key: str) -> Account | None: ...


class RemotingAccess:
    """An RpcHook: refuses what is not signed by an account, or more than that may ask. RemotingRefused
    (NOT_AUTHENTICATED, NOT_PERMITTED)."""

    def __init__(self, accounts: KnowsAccounts) -> None:
        self._accounts = accounts

    def before(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        account = self._signer(connection.peer, request)
        if account.admin:
            return
        needs = NEEDS.get(request.code, _admin)
        if needs is _admin:
            text = f"account {account.access_key} is no administrator; request code {request.code} needs one"
            raise RemotingRefused(Status.NOT_PERMITTED, text)
        if problem := missing(account, needs(request)):
            raise RemotingRefused(Status.NOT_PERMITTED, problem)

    def after(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand
    ) -> None:
        """Answers are not signed."""

    def check_read(self, access_key: str, topic: str) -> None:
        """Of a message whose topic is known only when it was found. RemotingRefused (NOT_PERMITTED)."""
        account = self._accounts.account(access_key)
        if account is None:
            raise RemotingRefused(Status.NOT_PERMITTED, f"there is no account {access_key[:64]!r}")
        if not account.admin and (problem := missing(account, [Need(False, topic, Right.SUB)])):
            raise RemotingRefused(Status.NOT_PERMITTED, problem)

    def _signer(self, peer: str, request: RemotingCommand) -> Account:
        key = request.fields.get(ACCESS_KEY, "")
        if not key or SIGNATURE not in request.fields:
            raise _unknown("this broker wants signed requests, and there is no AccessKey with a Signature")
        account = self._accounts.account(key)
        if account is None:
            raise _unknown(f"no account has the access key {key[:64]!r}")
        if not is_signed_with(request, account.secret.get_secret_value()):
            raise _unknown(f"Check signature failed for accessKey={key}")
        if not account.may_come_from(peer):
            raise RemotingRefused(Status.NOT_PERMITTED, f"account {key} may not call from {peer}")
        return account


def access_key_of(request: RemotingCommand) -> str:
    """Of a request that was let through."""
    return request.fields.get(ACCESS_KEY, "")


def _unknown(problem: str) -> RemotingRefused:
    return RemotingRefused(Status.NOT_AUTHENTICATED, problem)


def _topic(request: RemotingCommand, rights: Right, name: str = "topic") -> Need:
    return Need(False, text(long_names(request), name), rights)


def _group(request: RemotingCommand, name: str = "consumerGroup") -> Need:
    return Need(True, text(request.fields, name), Right.SUB)


def _nothing(request: RemotingCommand) -> Iterator[Need]:
    """Signed is enough."""
    return iter(())


def _admin(request: RemotingCommand) -> Iterator[Need]:
    return iter(())


def _to_send(request: RemotingCommand) -> Iterator[Need]:
    """Consumers whose send-back failed send to their retry topic."""
    need = _topic(request, Right.PUB)
    is_retry = need.name.startswith(RETRY_PREFIX)
    yield Need(True, need.name.removeprefix(RETRY_PREFIX), Right.SUB) if is_retry else need


def _to_end(request: RemotingCommand) -> Iterator[Need]:
    yield Need(False, named(request.fields).topic, Right.PUB)


def _to_consume(request: RemotingCommand) -> Iterator[Need]:
    yield _group(request)
    yield _topic(request, Right.SUB)


def _of_topic(request: RemotingCommand) -> Iterator[Need]:
    yield _topic(request, Right.SUB)


def _either_of_topic(request: RemotingCommand) -> Iterator[Need]:
    yield _topic(request, _EITHER)


def _of_group(request: RemotingCommand) -> Iterator[Need]:
    yield _group(request)


def _of_named_group(request: RemotingCommand) -> Iterator[Need]:
    yield _group(request, "group")


def _to_leave(request: RemotingCommand) -> Iterator[Need]:
    if request.fields.get("consumerGroup"):
        yield _group(request)


def _to_live(request: RemotingCommand) -> Iterator[Need]:
    for consumer in bodies.heartbeat(request.body).consumers:
        yield Need(True, consumer.group, Right.SUB)
        for topic in consumer.subscriptions:
            yield Need(False, topic, Right.SUB)


def _to_lock(request: RemotingCommand) -> Iterator[Need]:
    wanted = bodies.lock_request(request.body)
    yield Need(True, wanted.group, Right.SUB)
    for queue in wanted.queues:
        yield Need(False, queue.topic, Right.SUB)


def _to_acknowledge(request: RemotingCommand) -> Iterator[Need]:
    for ack in bodies.batch_acks(request.body):
        yield Need(True, ack.group, Right.SUB)
        yield Need(False, ack.topic, Right.SUB)


def _to_be_assigned(request: RemotingCommand) -> Iterator[Need]:
    group, topic, _ = bodies.assignment_request(request.body)
    yield Need(True, group, Right.SUB)
    yield Need(False, topic, Right.SUB)


#: Of messages that are found by their place (33, 36) the topic is checked when it is known.
NEEDS: Final[Mapping[int, Needs]] = {
    RequestCode.SEND_MESSAGE: _to_send,
    RequestCode.SEND_MESSAGE_V2: _to_send,
    RequestCode.SEND_BATCH_MESSAGE: _to_send,
    RequestCode.SEND_REPLY_MESSAGE: _to_send,
    RequestCode.SEND_REPLY_MESSAGE_V2: _to_send,
    RequestCode.END_TRANSACTION: _to_end,
    RequestCode.PULL_MESSAGE: _to_consume,
    RequestCode.LITE_PULL_MESSAGE: _to_consume,
    RequestCode.QUERY_CONSUMER_OFFSET: _to_consume,
    RequestCode.UPDATE_CONSUMER_OFFSET: _to_consume,
    RequestCode.POP_MESSAGE: _to_consume,
    RequestCode.ACK_MESSAGE: _to_consume,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _to_consume,
    RequestCode.PEEK_MESSAGE: _to_consume,
    RequestCode.NOTIFICATION: _to_consume,
    RequestCode.POLLING_INFO: _to_consume,
    RequestCode.BATCH_ACK_MESSAGE: _to_acknowledge,
    RequestCode.QUERY_ASSIGNMENT: _to_be_assigned,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _admin,
    RequestCode.CONSUMER_SEND_MSG_BACK: _of_named_group,
    RequestCode.VIEW_MESSAGE_BY_ID: _nothing,
    RequestCode.QUERY_MESSAGE: _of_topic,
    RequestCode.GET_MAX_OFFSET: _of_topic,
    RequestCode.GET_MIN_OFFSET: _of_topic,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _of_topic,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _of_topic,
    RequestCode.LOCK_BATCH_MQ: _to_lock,
    RequestCode.UNLOCK_BATCH_MQ: _to_lock,
    RequestCode.HEART_BEAT: _to_live,
    RequestCode.UNREGISTER_CLIENT: _to_leave,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _of_group,
    RequestCode.CHECK_CLIENT_CONFIG: _nothing,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _of_group,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _of_group,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _of_group,
    RequestCode.GET_CONSUME_STATS: _of_group,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _of_named_group,
    RequestCode.GET_TOPIC_CONFIG: _either_of_topic,
    RequestCode.GET_TOPIC_STATS_INFO: _either_of_topic,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _either_of_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: _admin,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _admin,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _admin,
    RequestCode.GET_ALL_DELAY_OFFSET: _admin,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _admin,
    RequestCode.GET_ALL_PRODUCER_INFO: _admin,
    RequestCode.GET_BROKER_CONFIG: _admin,
    RequestCode.GET_BROKER_RUNTIME_INFO: _admin,
    RequestCode.VIEW_BROKER_STATS_DATA: _admin,
    RequestCode.GET_BROKER_CONSUME_STATS: _admin,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _admin,
    RequestCode.DELETE_TOPIC_IN_BROKER: _admin,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _admin,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _admin,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _admin,
    RequestCode.BEGIN_QUEUE: _admin,
    RequestCode.IMPORT_MESSAGES: _admin,
    RequestCode.READ_QUEUE: _admin,
}
