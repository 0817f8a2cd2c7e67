"""The disk thread of a node, its jobs, and preallocation."""
