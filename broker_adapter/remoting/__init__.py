"""RocketMQ's remoting protocol (4.x): frames, connections, and dispatch by request code."""
