"""Infrastructure for long-running programs: addresses, quotas, logs; the event loop and threads (`loops`),
files and handles (`files`), gRPC and TLS (`transport`), status pages (`http`).

The node and the broker use it. It does not depend on Raft or on messages.
"""
