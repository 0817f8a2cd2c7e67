"""Replicated metadata: topics, consumer groups and consumer offsets.

`commands` and `records` define the log entries. `state` is the state machine, which applies them on every
node. `proposals` and `group_service` are the asynchronous layer on the master.
"""
