"""One replica of the log without I/O: values in, values out. Tested like the core."""
