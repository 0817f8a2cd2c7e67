"""Spark, and the Java that it runs on."""
