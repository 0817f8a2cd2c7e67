"""Converters from histories of other systems to traces: Jepsen histories and Porcupine logs."""
