"""The trace of a run: what clients, nodes and faults did, as lines of JSON."""
