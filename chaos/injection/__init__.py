"""Injects the disk failures and clock jumps that the harness orders, below a node."""
