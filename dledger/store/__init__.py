"""Storage of one node: data files, index, identity, hard state, checkpoint and recovery."""
