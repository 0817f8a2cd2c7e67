"""Remarks of the table of RocketMQ's integration tests, by class."""

_ADMINISTRATION = "[deviation](deviations.md#administration)"
_CONSUMERS = "[deviation](deviations.md#consumers)"
_PRIORITY = f"the priority of a message has no effect ({_ADMINISTRATION})"
_RECALL = "a recall handle identifies one message, also with a delay level ([deviation](deviations.md#sends))"
_STATIC = f"static topics are not supported ({_ADMINISTRATION})"

#: Classes that start RocketMQ's own stores, or no server at all. They would pass with any broker.
NOT_RUN = {
    "autoswitchrole.AutoSwitchRoleIntegrationTest": "tests RocketMQ's store and HA service in its process",
    "lmq.TestBenchLmqStore": "tests a benchmark program of RocketMQ",
    "schema.SchemaTest": "compares RocketMQ's Java classes with a description of them",
}
#: Reasons why a class does not pass completely.
REASONS = {
    "client.consumer.pop.PopOrderlyIT": f"an acknowledged message is not delivered again ({_CONSUMERS})",
    "client.consumer.pop.PopPriorityIT": _PRIORITY,
    "client.producer.batch.BatchSendIT": f"`queue.type=BatchCQ` has no effect ({_ADMINISTRATION})",
    "client.producer.querymsg.QueryMsgByKeyIT": f"a query returns more than 64 messages ({_CONSUMERS})",
    "grpc.v2.ClusterGrpcIT": f"RocketMQ's proxy with our brokers; {_PRIORITY}",
    "grpc.v2.LocalGrpcIT": f"our gRPC port; assigns queues of the node's own broker; {_PRIORITY}",
    "offset.LagCalculationIT": "registers a filter in the broker's ConsumerFilterManager",
    "offset.OffsetNotFoundIT": "registers an RPCHook in the broker",
    "offset.OffsetResetForPopIT": "reads the broker's ConsumerOrderInfoManager",
    "recall.RecallWithTraceIT": _RECALL,
    "recall.SendAndRecallDelayMessageIT": _RECALL,
    "route.CreateAndUpdateTopicIT": _STATIC,
    "statictopic.StaticTopicIT": _STATIC,
}
