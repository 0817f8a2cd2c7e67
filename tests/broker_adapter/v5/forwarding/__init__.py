"""tests.broker_adapter.v5.forwarding"""
