"""Consistency checker for the traces of chaos runs. It gives a verdict on each guarantee, with evidence."""
