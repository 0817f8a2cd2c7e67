"""Spark, and the Java runtime for it."""
