"""Setup of a node: configuration, secrets, TLS, libraries."""
