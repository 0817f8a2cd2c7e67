"""Entries on disk: segments, index, identity, term and vote, checkpoint, recovery."""
