"""The demo: a real file through topics and queues to a group, under faults, and the proof."""
