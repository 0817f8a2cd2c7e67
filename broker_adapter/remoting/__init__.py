"""RocketMQ's remoting protocol (4.x): frames, connections, and who answers which request code."""
