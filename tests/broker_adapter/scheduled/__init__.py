"""tests.broker_adapter.delivery"""
