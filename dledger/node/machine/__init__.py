"""Runs the program's state machine on a node: applies committed entries, and saves and loads states."""
