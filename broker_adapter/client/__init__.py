"""The client of the broker: producers and consumers for asyncio, and blocking faces of them."""

from broker_adapter.client.admin import Admin
from broker_adapter.client.blocking import (
    BlockingAdmin,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingQueueReader,
)
from broker_adapter.client.consumer import Consumer
from broker_adapter.client.listening import GroupListener
from broker_adapter.client.nameserver_routes import NameServerRoutes
from broker_adapter.client.producer import Producer
from broker_adapter.client.pull_consumer import PullConsumer, QueueReader
from broker_adapter.client.routes import Route, RouteSource, StaticRoutes
from broker_adapter.client.send_queue import ProducerLimits
from broker_adapter.client.values import Message, MessageQueue, PullBatch, SendReceipt

__all__ = [
    "Admin",
    "BlockingAdmin",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingQueueReader",
    "Consumer",
    "GroupListener",
    "Message",
    "MessageQueue",
    "NameServerRoutes",
    "Producer",
    "ProducerLimits",
    "PullBatch",
    "PullConsumer",
    "QueueReader",
    "Route",
    "RouteSource",
    "SendReceipt",
    "StaticRoutes",
]
