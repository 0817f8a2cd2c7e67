"""Analysis of other systems' histories: models, cycles of transactions, linearizability of registers."""
