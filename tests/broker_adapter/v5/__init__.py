"""tests.broker_adapter.v5"""
