"""Files derived from the log: ConsumeQueues, IndexFiles and their checkpoint. The Dispatcher writes them."""
