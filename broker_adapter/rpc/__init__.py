"""What the gRPC services of a broker share: places for calls, and for large requests."""
