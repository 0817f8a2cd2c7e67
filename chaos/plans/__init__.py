"""Scenario files, and random scenarios derived from them."""
