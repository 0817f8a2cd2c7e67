"""Independent evidence of durability: records the nodes' write and sync calls to the operating system, and
their results.

`recorder` runs inside a node, and `replay` reads its journal after the run.
"""
