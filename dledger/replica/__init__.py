"""One replica of the log without I/O of its own."""
