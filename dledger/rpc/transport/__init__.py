"""gRPC as all services use it: channels, servers, TLS, limits, bytes on the wire."""
