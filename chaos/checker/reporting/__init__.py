"""Measurements, charts, the HTML page, and results.json."""
