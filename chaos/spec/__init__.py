"""A third opinion on the traces of the log: an executable specification, stepped through a trace."""
