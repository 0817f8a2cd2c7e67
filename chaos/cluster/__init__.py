"""The cluster under test: real processes, with injectable disk and clock faults and traced nodes."""
