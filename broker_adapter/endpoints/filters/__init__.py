"""Filter expressions of consumers: tags and SQL92, compiled for delivery."""
