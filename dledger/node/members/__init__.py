"""What a node and the other members give each other: pushes, catch-up, votes, repairs, read points."""
