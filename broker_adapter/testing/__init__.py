"""Brokers for tests: processes of `dledger dev`, and the pytest plugin that starts them."""

from broker_adapter.testing.dev_process import DevCluster, DevProcess

__all__ = ["DevCluster", "DevProcess"]
