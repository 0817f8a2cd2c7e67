"""Files, file descriptors, and configuration files."""
