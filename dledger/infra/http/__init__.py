"""Read-only status over HTTP."""
