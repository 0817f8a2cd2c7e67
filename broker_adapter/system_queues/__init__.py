"""Delayed messages and halves of transactions as RocketMQ keeps them: in queues of topics of its own."""
