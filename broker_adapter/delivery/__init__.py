"""Delivery of single messages: receipt handles, invisible times, attempts, delays and half messages.

The complete state is in the log (docs/broker-delivery.md), so it survives a change of master.
"""
