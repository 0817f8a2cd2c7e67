"""What is computed of other systems' histories: their models, cycles of transactions, orders of registers."""
