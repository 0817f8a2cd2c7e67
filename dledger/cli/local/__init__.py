"""A cluster of real processes on this machine: planned, started, hurt, watched."""
