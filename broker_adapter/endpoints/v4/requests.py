"""The table of request codes, with one row per remoting code that a broker answers.

A new code needs a number (`broker_adapter.remoting.codes`), a row and a handler. Registration, access
control, forwarding and the send-only port use the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from broker_adapter.endpoints.access.accounts import Right
from broker_adapter.endpoints.access.permissions import RequiredRight
from broker_adapter.endpoints.v4 import bodies
from broker_adapter.endpoints.v4.calls import Handler, MasterProcessors
from broker_adapter.endpoints.v4.node import ExecutorName, NodeProcessors
from broker_adapter.endpoints.v4.request import (
    ADMIN_QUERY,
    CHANGE,
    CHANGE_WITHOUT_ID,
    PEEK,
    POP,
    PULL,
    READ,
    REMOTING,
    REPLY,
    SEND,
    RemotingRequest,
    RequestKind,
    long_names,
    named_half,
    text,
)
from broker_adapter.endpoints.v4.send_only import SendOnlyAnswers
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand, decode
from broker_adapter.remoting.executors import Processor
from broker_adapter.wire.topic_names import RETRY_PREFIX

Needs: TypeAlias = Callable[[RemotingCommand], Iterator[RequiredRight]]
#: Marks a code that requires an administrator's account instead of rights for topics and groups.
ADMINISTRATORS: Final = None
_EITHER = Right.PUB | Right.SUB


class Row(NamedTuple):
    """One request code.

    `rights`: the rights that an account needs for topics and groups. `handler`: the handler on the master, or
    None if each node answers alone. `send_only`: the processor at the send-only port, or None if it is the
    same as at the main port. `kind`: how nodes forward the request. `at_node`: the processor on the receiving
    node, or None if the code is not supported. `for_operators`: only operators may send it, if nodes identify
    operators by certificate. `once_per_route`: tools send the change to each broker name of a route, so a
    repetition at a send-only port is not executed.
    """

    code: RequestCode
    rights: Needs | None
    handler: Callable[[MasterProcessors], Handler] | None = None
    send_only: Callable[[SendOnlyAnswers], Processor] | None = None
    executor: ExecutorName = "queries"
    kind: RequestKind = CHANGE
    at_node: Callable[[NodeProcessors], Processor | None] = lambda node: node.forwarding.pass_on
    for_operators: bool = False
    once_per_route: bool = False


# -- rights -----------------------------------------------------------------------------------------------


def _topic(request: RemotingCommand, rights: Right, name: str = "topic") -> RequiredRight:
    return RequiredRight(False, text(long_names(request), name), rights)


def _group(request: RemotingCommand, name: str = "consumerGroup") -> RequiredRight:
    return RequiredRight(True, text(request.fields, name), Right.SUB)


def _nothing(request: RemotingCommand) -> Iterator[RequiredRight]:
    """Require no right. A valid signature is sufficient."""
    return iter(())


def _to_send(request: RemotingCommand) -> Iterator[RequiredRight]:
    """Return the rights for a send.

    Consumers send to their retry topic after sending a message back has failed.
    """
    need = _topic(request, Right.PUB)
    is_retry = need.name.startswith(RETRY_PREFIX)
    yield RequiredRight(True, need.name.removeprefix(RETRY_PREFIX), Right.SUB) if is_retry else need


def _to_end(request: RemotingCommand) -> Iterator[RequiredRight]:
    topic = named_half(request.fields).topic
    if not topic:  # a lookup would disclose the topic to an unauthorized client
        raise IllegalMessage(Status.MESSAGE_ID_INVALID, "a request to end a transaction must name its topic")
    yield RequiredRight(False, topic, Right.PUB)


def _to_consume(request: RemotingCommand) -> Iterator[RequiredRight]:
    yield _group(request)
    yield _topic(request, Right.SUB)


def _to_recall(request: RemotingCommand) -> Iterator[RequiredRight]:
    yield _topic(request, Right.PUB)


def _of_topic(request: RemotingCommand) -> Iterator[RequiredRight]:
    yield _topic(request, Right.SUB)


def _either_of_topic(request: RemotingCommand) -> Iterator[RequiredRight]:
    yield _topic(request, _EITHER)


def _of_group(request: RemotingCommand) -> Iterator[RequiredRight]:
    yield _group(request)


def _of_named_group(request: RemotingCommand) -> Iterator[RequiredRight]:
    yield _group(request, "group")


def _to_leave(request: RemotingCommand) -> Iterator[RequiredRight]:
    if request.fields.get("consumerGroup"):
        yield _group(request)


def _to_live(request: RemotingCommand) -> Iterator[RequiredRight]:
    for consumer in bodies.heartbeat(request.body).consumers:
        yield RequiredRight(True, consumer.group, Right.SUB)
        for topic in consumer.subscriptions:
            yield RequiredRight(False, topic, Right.SUB)


def _to_lock(request: RemotingCommand) -> Iterator[RequiredRight]:
    wanted = bodies.lock_request(request.body)
    yield RequiredRight(True, wanted.group, Right.SUB)
    for queue in wanted.queues:
        yield RequiredRight(False, queue.topic, Right.SUB)


def _to_acknowledge(request: RemotingCommand) -> Iterator[RequiredRight]:
    for ack in bodies.batch_acks(request.body):
        yield RequiredRight(True, ack.group, Right.SUB)
        yield RequiredRight(False, ack.topic, Right.SUB)


def _to_be_assigned(request: RemotingCommand) -> Iterator[RequiredRight]:
    group, topic, _ = bodies.assignment_request(request.body)
    yield RequiredRight(True, group, Right.SUB)
    yield RequiredRight(False, topic, Right.SUB)


# -- rows -------------------------------------------------------------------------------------------------

#: Shortcuts for rows with common columns.
_send = partial(Row, executor="sends", kind=SEND)
_change = partial(Row, executor="changes")
_reply = partial(Row, executor="replies", kind=REPLY, at_node=lambda n: n.forwarding.reply)
_pull = partial(Row, executor="pulls", kind=PULL, at_node=lambda n: n.forwarding.pull)
_pop = partial(Row, executor="pulls", kind=POP)
_peek = partial(Row, executor="queries", kind=PEEK)
_read = partial(Row, executor="queries", kind=READ)
_client_query = partial(Row, executor="clients")
_node_query = partial(Row, executor="admin")
_admin_query = partial(Row, executor="admin", kind=ADMIN_QUERY)
_operation = partial(Row, executor="admin", for_operators=True)
_shared_change = partial(Row, executor="admin", for_operators=True, once_per_route=True)

#: `m`: processors of the master. `n`: processors of the node. `p`: processors of the send-only port. The
#: topic of a message that is found by position (codes 33, 36) is checked after the lookup.
TABLE: Final = (
    # -- messages
    _send(RequestCode.SEND_MESSAGE, _to_send, lambda m: m.sends.send),
    _send(RequestCode.SEND_MESSAGE_V2, _to_send, lambda m: m.sends.send),
    _send(RequestCode.SEND_BATCH_MESSAGE, _to_send, lambda m: m.sends.send),
    _change(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        _of_named_group,
        lambda m: m.send_backs.send_back,
        kind=CHANGE_WITHOUT_ID,
    ),
    _change(RequestCode.END_TRANSACTION, _to_end, lambda m: m.transactions.end_transaction),
    _change(RequestCode.RECALL_MESSAGE, _to_recall, lambda m: m.recalls.recall),
    _reply(RequestCode.SEND_REPLY_MESSAGE, _to_send, lambda m: m.replies.reply),
    _reply(RequestCode.SEND_REPLY_MESSAGE_V2, _to_send, lambda m: m.replies.reply),
    _pull(RequestCode.PULL_MESSAGE, _to_consume, lambda m: m.pulls.pull, lambda p: p.pull),
    _pull(RequestCode.LITE_PULL_MESSAGE, _to_consume, lambda m: m.pulls.pull, lambda p: p.pull),
    _read(RequestCode.QUERY_MESSAGE, _of_topic, lambda m: m.pulls.query, lambda p: p.no_message),
    _read(RequestCode.VIEW_MESSAGE_BY_ID, _nothing, lambda m: m.pulls.view),
    # -- single messages
    _pop(RequestCode.POP_MESSAGE, _to_consume, lambda m: m.pops.pop, lambda p: p.pop),
    _pop(RequestCode.NOTIFICATION, _to_consume, lambda m: m.peeks.notify, lambda p: p.notify),
    _peek(RequestCode.PEEK_MESSAGE, _to_consume, lambda m: m.peeks.peek, lambda p: p.peek),
    _peek(RequestCode.POLLING_INFO, _to_consume, lambda m: m.peeks.count_waiting),
    _change(RequestCode.ACK_MESSAGE, _to_consume, lambda m: m.pops.ack),
    _change(RequestCode.BATCH_ACK_MESSAGE, _to_acknowledge, lambda m: m.pops.ack_many),
    _change(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        _to_consume,
        lambda m: m.pops.change_invisible,
        kind=CHANGE_WITHOUT_ID,
    ),
    # -- offsets and locks
    _read(RequestCode.QUERY_CONSUMER_OFFSET, _to_consume, lambda m: m.offsets.query, lambda p: p.zero_offset),
    _change(RequestCode.UPDATE_CONSUMER_OFFSET, _to_consume, lambda m: m.offsets.update, lambda p: p.accept),
    _read(RequestCode.GET_MAX_OFFSET, _of_topic, lambda m: m.offsets.max_offset, lambda p: p.zero_offset),
    _read(RequestCode.GET_MIN_OFFSET, _of_topic, lambda m: m.offsets.min_offset, lambda p: p.zero_offset),
    _read(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        _of_topic,
        lambda m: m.offsets.by_time,
        lambda p: p.zero_offset,
    ),
    _read(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        _of_topic,
        lambda m: m.offsets.earliest_time,
        lambda p: p.no_time,
    ),
    Row(RequestCode.LOCK_BATCH_MQ, _to_lock, lambda m: m.locks.lock, executor="queries"),
    Row(RequestCode.UNLOCK_BATCH_MQ, _to_lock, lambda m: m.locks.unlock, executor="queries"),
    # -- clients and members of groups
    Row(
        RequestCode.HEART_BEAT,
        _to_live,
        lambda m: m.send_backs.heartbeat,
        executor="clients",
        at_node=lambda n: n.clients.heartbeat,
    ),
    _client_query(RequestCode.UNREGISTER_CLIENT, _to_leave, at_node=lambda n: n.clients.unregister),
    _client_query(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, _of_group, at_node=lambda n: n.clients.consumer_list
    ),
    _client_query(RequestCode.CHECK_CLIENT_CONFIG, _nothing, at_node=lambda n: n.clients.check_config),
    _client_query(RequestCode.QUERY_ASSIGNMENT, _to_be_assigned, at_node=lambda n: n.queries.assignment),
    _client_query(
        RequestCode.SET_MESSAGE_REQUEST_MODE, ADMINISTRATORS, at_node=lambda n: n.queries.set_assignment_mode
    ),
    _node_query(RequestCode.GET_CONSUMER_CONNECTION_LIST, _of_group, at_node=lambda n: n.queries.consumers),
    _node_query(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, ADMINISTRATORS, at_node=lambda n: n.queries.producers
    ),
    _node_query(RequestCode.GET_ALL_PRODUCER_INFO, ADMINISTRATORS, at_node=lambda n: n.queries.all_producers),
    Row(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        _of_group,
        executor="member queries",
        at_node=lambda n: n.queries.running_info,
    ),
    Row(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        _of_group,
        executor="messages out of turn",
        at_node=lambda n: n.queries.consume_directly,
        for_operators=True,
    ),
    # -- topics and groups
    _shared_change(RequestCode.UPDATE_AND_CREATE_TOPIC, ADMINISTRATORS, lambda m: m.admin.put_topic),
    _shared_change(RequestCode.DELETE_TOPIC_IN_BROKER, ADMINISTRATORS, lambda m: m.admin.delete_topic),
    _admin_query(RequestCode.GET_ALL_TOPIC_CONFIG, ADMINISTRATORS, lambda m: m.admin.all_topics),
    _admin_query(RequestCode.GET_TOPIC_CONFIG, _either_of_topic, lambda m: m.admin.topic),
    _admin_query(
        RequestCode.GET_TOPIC_STATS_INFO,
        _either_of_topic,
        lambda m: m.admin.topic_stats,
        lambda p: p.no_topic_stats,
    ),
    _shared_change(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ADMINISTRATORS, lambda m: m.admin.put_group
    ),
    _shared_change(RequestCode.DELETE_SUBSCRIPTIONGROUP, ADMINISTRATORS, lambda m: m.admin.delete_group),
    _admin_query(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ADMINISTRATORS, lambda m: m.admin.all_groups),
    _admin_query(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, _of_named_group, lambda m: m.admin.group),
    _admin_query(
        RequestCode.GET_CONSUME_STATS,
        _of_group,
        lambda m: m.admin.consume_stats,
        lambda p: p.no_consume_stats,
    ),
    _admin_query(
        RequestCode.GET_BROKER_CONSUME_STATS,
        ADMINISTRATORS,
        lambda m: m.admin.all_consume_stats,
        lambda p: p.no_groups,
    ),
    _admin_query(RequestCode.GET_ALL_CONSUMER_OFFSET, ADMINISTRATORS, lambda m: m.admin.all_offsets),
    _admin_query(RequestCode.GET_ALL_DELAY_OFFSET, ADMINISTRATORS, lambda m: m.admin.all_delays),
    _admin_query(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        _either_of_topic,
        lambda m: m.admin.groups_of_topic,
        at_node=lambda n: n.queries.groups_of_topic,
    ),
    _shared_change(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ADMINISTRATORS,
        lambda m: m.admin.reset,
        at_node=lambda n: n.forwarding.reset,
    ),
    # -- this node
    _node_query(RequestCode.GET_BROKER_CONFIG, ADMINISTRATORS, at_node=lambda n: n.queries.settings),
    _node_query(
        RequestCode.GET_BROKER_RUNTIME_INFO,
        ADMINISTRATORS,
        send_only=lambda p: p.zero_runtime,
        at_node=lambda n: n.queries.runtime,
    ),
    _node_query(
        RequestCode.VIEW_BROKER_STATS_DATA,
        ADMINISTRATORS,
        send_only=lambda p: p.zero_stats,
        at_node=lambda n: n.queries.stats,
    ),
    _operation(
        RequestCode.CHANGE_BROKER_ROLE,
        ADMINISTRATORS,
        at_node=lambda n: n.commands.get(RequestCode.CHANGE_BROKER_ROLE),
    ),
    _operation(
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        ADMINISTRATORS,
        at_node=lambda n: n.commands.get(RequestCode.DELETE_EXPIRED_COMMITLOG),
    ),
    # -- imports of another broker's messages
    _operation(RequestCode.BEGIN_QUEUE, ADMINISTRATORS, lambda m: m.imports.begin_queue),
    _operation(RequestCode.IMPORT_MESSAGES, ADMINISTRATORS, lambda m: m.imports.store),
    _operation(RequestCode.READ_QUEUE, ADMINISTRATORS, lambda m: m.imports.read_queue),
)


ROWS: Final[Mapping[int, Row]] = {row.code: row for row in TABLE}


def to_request(command: RemotingCommand) -> RemotingRequest:
    """Return the request in the form in which nodes forward it.

    A code that has no row may be from a newer node.
    """
    row = ROWS.get(command.code)
    return RemotingRequest(command, CHANGE if row is None else row.kind)


def request_of(name: str, data: bytes) -> Request:
    """Parse a request of either protocol that another node has forwarded."""
    return to_request(decode(data)) if name == REMOTING else Request(name, data)
