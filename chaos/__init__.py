"""Chaos tests: faults on real processes under load, with a trace of all operations and events."""
