"""Loads that know what they were promised."""
