"""Faults: selection of targets, start, end, and the evidence that each fault took effect."""
