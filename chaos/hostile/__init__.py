"""Hostile clients, each kind in its own process: `python -m chaos.hostile`."""
