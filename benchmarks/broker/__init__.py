"""Figures of the broker."""
