"""Schema and writers of the trace of a run."""
