"""Directories of stopped nodes: backup, inspection, the way back from a term."""
