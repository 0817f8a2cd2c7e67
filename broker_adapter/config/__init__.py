"""`[program.settings]` of a node that runs a broker."""
