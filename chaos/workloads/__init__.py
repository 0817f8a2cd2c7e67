"""Workloads that record every acknowledgement they receive."""
