"""Replication of a CommitLog from a master to slaves with RocketMQ's protocol (HAService, HAClient)."""
