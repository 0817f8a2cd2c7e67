"""Fault injection below a node: its disk fails and its clock jumps as the harness orders."""
