"""Decisions and encodings of the client: pure functions and values without I/O."""
