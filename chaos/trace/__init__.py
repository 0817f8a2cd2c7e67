"""What a run writes down: the schema of traces, and their writers."""
