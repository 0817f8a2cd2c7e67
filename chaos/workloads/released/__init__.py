"""Load by released clients of RocketMQ 5, each in a process of its own."""
