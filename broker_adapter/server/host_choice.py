"""Chooses the log of a broker. Separate, because brokers on other logs do not load the classic one."""

from __future__ import annotations

from broker_adapter.config.settings import BrokerSettings
from broker_adapter.server.log_host import LogHost, ReplicatedHost
from dledger import NodeConfig


def host_for(config: NodeConfig, settings: BrokerSettings) -> LogHost:
    """Create the log host. Raises ConfigError for settings that the log does not support."""
    if settings.store == "classic":
        from broker_adapter.server.classic_host import ClassicHost

        return ClassicHost(config, settings)
    return ReplicatedHost(config, settings)
