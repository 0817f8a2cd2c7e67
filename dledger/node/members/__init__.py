"""Traffic between a node and the other members: pushes, catch-up, votes, repairs, read points."""
