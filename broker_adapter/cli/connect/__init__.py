"""Connections of commands to brokers: options, targets and error output."""
