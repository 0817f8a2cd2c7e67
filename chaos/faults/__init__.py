"""Faults: aimed, begun, ended, and the evidence that each really happened."""
