"""The path from a validated message to a log entry: batch, assign queue offsets, append."""
