"""`apache.rocketmq.v2.MessagingService`, the gRPC service for unmodified RocketMQ 5 clients.

The front (`front`) handles gRPC, and the handlers (`calls.handlers`) implement the calls. Requests and
responses pass between them as bytes, so that a node can forward a call unchanged.
"""
