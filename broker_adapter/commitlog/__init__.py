"""From a judged message to an entry of the log: gather, number, append."""
