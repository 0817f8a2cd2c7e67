"""Bytes that RocketMQ defines: records, properties, ids, units of ConsumeQueues, items of IndexFiles."""
