"""The endpoint of each node for clients of RocketMQ's remoting protocol (4.x)."""
