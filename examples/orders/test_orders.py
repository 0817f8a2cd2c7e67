"""Tests of the service with the fixtures of this package: `pytest examples/orders`."""

from __future__ import annotations

from broker_adapter.testing import DevCluster, DevProcess

from .orders import Billing, Order, Shop


def test_each_order_is_billed(rocketmq_broker: DevProcess) -> None:
    server, topic = rocketmq_broker.name_server, rocketmq_broker.topic("orders")
    with Shop(server, topic) as shop, Billing(server, topic) as billing:
        for number in range(10):
            shop.order(Order(f"A{number}", 100 * number))
        billing.wait_for(10)
        assert sum(billing.billed.values()) == 4_500


def test_no_order_is_lost_when_the_master_fails(rocketmq_cluster: DevCluster) -> None:
    server, topic = rocketmq_cluster.name_server, rocketmq_cluster.topic("orders")
    with Shop(server, topic) as shop, Billing(server, topic) as billing:
        shop.order(Order("before", 1))
        billing.wait_for(1)
        killed = rocketmq_cluster.kill_leader()
        shop.order(Order("after", 2))
        billing.wait_for(2)
        rocketmq_cluster.start_node(killed)
        assert billing.billed == {"before": 1, "after": 2}
