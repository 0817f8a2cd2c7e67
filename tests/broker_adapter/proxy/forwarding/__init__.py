"""tests.broker_adapter.proxy.forwarding"""
