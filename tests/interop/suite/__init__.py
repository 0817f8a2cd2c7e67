"""RocketMQ's own integration tests, with nodes of this project in place of RocketMQ's servers."""
