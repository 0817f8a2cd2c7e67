"""Delayed messages and half messages on the master: storage, delivery when due, transaction checks, and
carrying (repeated appends).
"""
