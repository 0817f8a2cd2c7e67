"""A pure Python client for RocketMQ's remoting protocol.

It supports brokers of RocketMQ 4.x and 5.x and of this project. Names are imported on first use, because
servers use parts of this package and start faster without the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker_adapter.client.admin import Admin
    from broker_adapter.client.blocking import (
        BlockingAdmin,
        BlockingProducer,
        BlockingPullConsumer,
        BlockingPushConsumer,
        BlockingTransactionProducer,
    )
    from broker_adapter.client.consumer_calls import ConsumeFromWhere
    from broker_adapter.client.core.process_queue import FlowLimits
    from broker_adapter.client.core.pulling import PullResult, PullStatus
    from broker_adapter.client.core.queue_choice import QueueNumber, select_by_hash
    from broker_adapter.client.core.rebalance import allocate_averagely, allocate_averagely_by_circle
    from broker_adapter.client.core.route_data import BrokerAddresses, TopicRoute
    from broker_adapter.client.core.subscription import SqlFilter
    from broker_adapter.client.core.values import (
        Message,
        MessageExt,
        MessageQueue,
        SendResult,
        SendStatus,
    )
    from broker_adapter.client.group_requests import MessageModel
    from broker_adapter.client.listening import QueueListener
    from broker_adapter.client.options import ClientOptions
    from broker_adapter.client.producer import Producer, Selector
    from broker_adapter.client.pull_consumer import PullConsumer
    from broker_adapter.client.push_consumer import PushConsumer
    from broker_adapter.client.queue_worker import ConsumeSettings, ConsumeStatus
    from broker_adapter.client.request_reply import reply_to
    from broker_adapter.client.roles import change_role
    from broker_adapter.client.transactions import (
        LocalTransactionState,
        TransactionProducer,
        TransactionSendResult,
    )
    from broker_adapter.errors import (
        AnswerMissing,
        BrokerError,
        Busy,
        CompressionUnavailable,
        GroupRefused,
        IllegalMessage,
        NameServerRefused,
        NameServerUnavailable,
        NotMaster,
        PutIndeterminate,
        PutRefused,
        ReadFailed,
        RemotingFailed,
        RemotingRefused,
        Status,
        StoredDataDamaged,
        TopicRefused,
    )
    from broker_adapter.remoting.signing import Credentials
    from broker_adapter.wire.compression import CompressionType

__all__ = [
    "Admin",
    "AnswerMissing",
    "BlockingAdmin",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingPushConsumer",
    "BlockingTransactionProducer",
    "BrokerAddresses",
    "BrokerError",
    "Busy",
    "ClientOptions",
    "CompressionType",
    "CompressionUnavailable",
    "ConsumeFromWhere",
    "ConsumeSettings",
    "ConsumeStatus",
    "Credentials",
    "FlowLimits",
    "GroupRefused",
    "IllegalMessage",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NameServerRefused",
    "NameServerUnavailable",
    "NotMaster",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PutIndeterminate",
    "PutRefused",
    "QueueListener",
    "QueueNumber",
    "ReadFailed",
    "RemotingFailed",
    "RemotingRefused",
    "Selector",
    "SendResult",
    "SendStatus",
    "SqlFilter",
    "Status",
    "StoredDataDamaged",
    "TopicRefused",
    "TopicRoute",
    "TransactionProducer",
    "TransactionSendResult",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "change_role",
    "reply_to",
    "select_by_hash",
]

#: The module of each name that is imported on first use.
_HOMES = {
    "Admin": "broker_adapter.client.admin",
    "AnswerMissing": "broker_adapter.errors",
    "BlockingAdmin": "broker_adapter.client.blocking",
    "BlockingProducer": "broker_adapter.client.blocking",
    "BlockingPullConsumer": "broker_adapter.client.blocking",
    "BlockingPushConsumer": "broker_adapter.client.blocking",
    "BlockingTransactionProducer": "broker_adapter.client.blocking",
    "BrokerAddresses": "broker_adapter.client.core.route_data",
    "BrokerError": "broker_adapter.errors",
    "Busy": "broker_adapter.errors",
    "ClientOptions": "broker_adapter.client.options",
    "CompressionType": "broker_adapter.wire.compression",
    "CompressionUnavailable": "broker_adapter.errors",
    "ConsumeFromWhere": "broker_adapter.client.consumer_calls",
    "ConsumeSettings": "broker_adapter.client.queue_worker",
    "ConsumeStatus": "broker_adapter.client.queue_worker",
    "Credentials": "broker_adapter.remoting.signing",
    "FlowLimits": "broker_adapter.client.core.process_queue",
    "GroupRefused": "broker_adapter.errors",
    "IllegalMessage": "broker_adapter.errors",
    "LocalTransactionState": "broker_adapter.client.transactions",
    "Message": "broker_adapter.client.core.values",
    "MessageExt": "broker_adapter.client.core.values",
    "MessageModel": "broker_adapter.client.group_requests",
    "MessageQueue": "broker_adapter.client.core.values",
    "NameServerRefused": "broker_adapter.errors",
    "NameServerUnavailable": "broker_adapter.errors",
    "NotMaster": "broker_adapter.errors",
    "Producer": "broker_adapter.client.producer",
    "PullConsumer": "broker_adapter.client.pull_consumer",
    "PullResult": "broker_adapter.client.core.pulling",
    "PullStatus": "broker_adapter.client.core.pulling",
    "PushConsumer": "broker_adapter.client.push_consumer",
    "PutIndeterminate": "broker_adapter.errors",
    "PutRefused": "broker_adapter.errors",
    "QueueListener": "broker_adapter.client.listening",
    "QueueNumber": "broker_adapter.client.core.queue_choice",
    "ReadFailed": "broker_adapter.errors",
    "RemotingFailed": "broker_adapter.errors",
    "RemotingRefused": "broker_adapter.errors",
    "Selector": "broker_adapter.client.producer",
    "SendResult": "broker_adapter.client.core.values",
    "SendStatus": "broker_adapter.client.core.values",
    "SqlFilter": "broker_adapter.client.core.subscription",
    "Status": "broker_adapter.errors",
    "StoredDataDamaged": "broker_adapter.errors",
    "TopicRefused": "broker_adapter.errors",
    "TopicRoute": "broker_adapter.client.core.route_data",
    "TransactionProducer": "broker_adapter.client.transactions",
    "TransactionSendResult": "broker_adapter.client.transactions",
    "allocate_averagely": "broker_adapter.client.core.rebalance",
    "allocate_averagely_by_circle": "broker_adapter.client.core.rebalance",
    "change_role": "broker_adapter.client.roles",
    "reply_to": "broker_adapter.client.request_reply",
    "select_by_hash": "broker_adapter.client.core.queue_choice",
}

if not TYPE_CHECKING:  # a visible __getattr__ would make type checkers accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
