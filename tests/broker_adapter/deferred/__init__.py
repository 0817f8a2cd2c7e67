"""tests.broker_adapter.pop"""
