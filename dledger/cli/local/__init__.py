"""A cluster of real processes on this machine, for trials, tests and benchmarks."""
