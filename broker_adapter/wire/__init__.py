"""Binary formats defined by RocketMQ: records, properties, ids, ConsumeQueue units, IndexFile items."""
