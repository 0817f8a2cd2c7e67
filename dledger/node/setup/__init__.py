"""What a node is told at its start: configuration, secrets, TLS, libraries."""
