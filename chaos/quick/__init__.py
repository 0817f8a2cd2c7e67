"""The quick check: loss, duplication and order of every message, from the raw trace, without Spark."""
