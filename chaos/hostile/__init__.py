"""Clients that are hostile on purpose, each kind in a process of its own: `python -m chaos.hostile`."""
