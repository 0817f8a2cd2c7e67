"""The disk thread of a node, what its jobs do, and space ahead of need."""
