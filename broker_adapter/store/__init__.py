"""What is derived from the log: ConsumeQueues, IndexFiles, their checkpoint, and the Dispatcher that makes them."""
