"""Evidence of durability that the product has no part in: what nodes asked the operating system for, and what
it answered. `recorder` runs inside a node, `replay` reads its journal after the run."""
