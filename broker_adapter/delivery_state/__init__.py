"""Replicated state of deliveries, which commands in the log change: pending messages, deferred messages, and
ids of recent sends.
"""
