"""Which log a broker has: the one place that tells the two apart."""

from __future__ import annotations

from broker_adapter.config.settings import BrokerSettings
from broker_adapter.server.log_host import LogHost, ReplicatedHost
from dledger import NodeConfig


def host_for(config: NodeConfig, settings: BrokerSettings) -> LogHost:
    """ConfigError for settings that this log cannot have."""
    if settings.store == "classic":
        from broker_adapter.server.classic_host import ClassicHost  # others need no such module

        return ClassicHost(config, settings)
    return ReplicatedHost(config, settings)
