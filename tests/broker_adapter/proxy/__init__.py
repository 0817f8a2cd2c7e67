"""tests.broker_adapter.proxy"""
