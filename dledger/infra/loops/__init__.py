"""The event loop, its threads, and measurements of their delays."""
