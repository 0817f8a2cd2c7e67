"""The quick check: what became of every message, from the raw trace alone, without Spark."""
