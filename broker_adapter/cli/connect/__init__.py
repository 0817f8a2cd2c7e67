"""How a command reaches brokers: options, the target they name, and what an error prints."""
