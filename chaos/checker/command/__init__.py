"""Output, signals, and error messages of the command."""
