"""Histories of other systems, turned into traces: Jepsen's, and logs as Porcupine reads them."""
