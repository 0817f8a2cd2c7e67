"""`apache.rocketmq.v2.MessagingService`: what unmodified clients of RocketMQ 5 speak to.

The front (`front`) knows gRPC; the handlers (`handlers`) know what calls mean. Between them travel the bytes
of requests and answers, so that a node can hand a call on to the master as it came.
"""
