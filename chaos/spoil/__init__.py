"""A node's disk and clock, spoiled on the harness's orders: what a node does is true, what it sees is not."""
