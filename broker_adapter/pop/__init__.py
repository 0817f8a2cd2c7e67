"""Delivery by message instead of by offset: who has which message until when, attempts, delays and halves.

All of it is in the log (docs/broker-delivery.md): a change of master loses none of it.
"""
