"""What is derived from the log: ConsumeQueues and IndexFiles, their checkpoint, the Dispatcher."""
