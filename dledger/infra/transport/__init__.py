"""gRPC for all services: channels, servers, TLS, limits, and encoding."""
