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
#: Why a class does not pass completely, or what its result does not show.
REASONS = {
    "client.consumer.pop.PopOrderlyIT": f"probably: no delivery after an acknowledgement ({_CONSUMERS})",
    "client.consumer.pop.PopPriorityIT": f"{_PRIORITY}; sends one object repeatedly, probably deduplicated",
    "client.producer.batch.BatchSendIT": f"`queue.type=BatchCQ` has no effect ({_ADMINISTRATION})",
    "client.producer.querymsg.QueryMsgByKeyIT": f"a query returns more than 64 messages ({_CONSUMERS})",
    "grpc.v2.ClusterGrpcIT": "RocketMQ's proxy with our brokers",
    "grpc.v2.LocalGrpcIT": "our gRPC port",
    "offset.LagCalculationIT": "`testEstimateLag` registers a filter in the broker's ConsumerFilterManager",
    "offset.OffsetNotFoundIT": "registers an RPCHook in the broker",
    "offset.OffsetResetForPopIT": "reads the broker's ConsumerOrderInfoManager",
    "recall.RecallWithTraceIT": _RECALL,
    "recall.SendAndRecallDelayMessageIT": _RECALL,
    "route.CreateAndUpdateTopicIT": _STATIC,
    "statictopic.StaticTopicIT": _STATIC,
    "tls.TlsMix2IT": "also passed with brokers without TLS, so it shows little",
}
