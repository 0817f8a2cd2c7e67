"""The door of clients of RocketMQ's remoting protocol (4.x): processors of request codes on every node."""
