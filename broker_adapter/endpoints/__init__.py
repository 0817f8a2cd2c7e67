"""Client requests: the client protocols, and the forwarding of requests between nodes."""
