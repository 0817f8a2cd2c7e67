"""Workload by released RocketMQ 5 clients, each in its own process."""
