"""Real faults on real processes, under load, and a trace of everything that happened."""
