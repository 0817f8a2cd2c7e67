"""tests.broker_adapter.proxy.access"""
