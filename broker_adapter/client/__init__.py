"""The client of RocketMQ's remoting protocol, in Python only: for brokers of RocketMQ 4.x, 5.x and ours."""

from broker_adapter.client.admin import Admin
from broker_adapter.client.blocking import (
    BlockingAdmin,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
)
from broker_adapter.client.consumer_calls import ConsumeFromWhere
from broker_adapter.client.core.process_queue import FlowLimits
from broker_adapter.client.core.pulling import PullResult, PullStatus
from broker_adapter.client.core.queue_choice import QueueNumber, select_by_hash
from broker_adapter.client.core.rebalance import allocate_averagely, allocate_averagely_by_circle
from broker_adapter.client.core.route_data import BrokerAddresses, TopicRoute
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
from broker_adapter.remoting.signing import Credentials

__all__ = [
    "Admin",
    "BlockingAdmin",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingPushConsumer",
    "BrokerAddresses",
    "ClientOptions",
    "ConsumeFromWhere",
    "ConsumeSettings",
    "ConsumeStatus",
    "Credentials",
    "FlowLimits",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueListener",
    "QueueNumber",
    "Selector",
    "SendResult",
    "SendStatus",
    "TopicRoute",
    "TransactionProducer",
    "TransactionSendResult",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "change_role",
    "reply_to",
    "select_by_hash",
]
