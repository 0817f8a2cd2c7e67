"""Protocols of the CommitLog for the broker, and their implementations by the replicated and
the classic log.
"""
