"""Conversion and validation of requests, responses and messages."""
