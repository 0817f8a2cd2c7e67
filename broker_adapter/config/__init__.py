"""`[program.settings]` of a node with a broker on it."""
