"""Replays the traces of chaos runs and says, with evidence, whether what was promised was kept."""
