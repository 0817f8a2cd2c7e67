"""Remarks of the table of RocketMQ's integration tests, by class."""

_ADMINISTRATION = "[deviation](deviations.md#administration)"
_CONSUMERS = "[deviation](deviations.md#consumers)"
_NAME_SERVER = "[deviation](deviations.md#nameserver)"
_SENDS = "[deviation](deviations.md#sends)"
_PRIORITY = f"the priority of a message has no effect ({_ADMINISTRATION})"
_SENT_TWICE = f"an object that is sent twice is stored once ({_SENDS})"
_STATIC = f"static topics are not supported ({_ADMINISTRATION})"

#: Classes that start RocketMQ's own stores, or no server at all. They would pass with any broker.
NOT_RUN = {
    "autoswitchrole.AutoSwitchRoleIntegrationTest": "tests RocketMQ's store and HA service in its process",
    "lmq.TestBenchLmqStore": "tests a benchmark program of RocketMQ",
    "schema.SchemaTest": "compares RocketMQ's Java classes with a description of them",
}
#: Why a class does not pass completely, or what its result does not show.
REASONS = {
    "client.consumer.pop.PopOrderlyIT": f"an acknowledged message is not delivered again ({_CONSUMERS})",
    "client.consumer.pop.PopPriorityIT": (
        f"{_PRIORITY}; `test_priority_consume_disable`: {_SENT_TWICE}; "
        "replicated: 7 tests are missing, because the class reached its limit of 600 s"
    ),
    "client.producer.batch.BatchSendIT": f"`queue.type=BatchCQ` has no effect ({_ADMINISTRATION})",
    "client.producer.querymsg.QueryMsgByKeyIT": f"a query returns more than 64 messages ({_CONSUMERS})",
    "grpc.v2.ClusterGrpcIT": _PRIORITY,
    "grpc.v2.LocalGrpcIT": f"a route contains only the node's own broker ({_NAME_SERVER}); {_PRIORITY}",
    "offset.LagCalculationIT": f"{_SENT_TWICE}; `testEstimateLag` uses the broker's ConsumerFilterManager",
    "offset.OffsetNotFoundIT": "registers an RPCHook in the broker",
    "offset.OffsetResetForPopIT": "reads the broker's ConsumerOrderInfoManager",
    "offset.OffsetResetIT": (
        "`testPullOffsetTotal`: compares two reads of an offset, and fails if a commit is between them; "
        "open: `testResetOffsetTotal` waited 3 min for the messages after a reset; passed in earlier runs"
    ),
    "recall.RecallWithTraceIT": f"recalls a message that was never sent: 604 ({_SENDS})",
    "recall.SendAndRecallDelayMessageIT": (
        f"recalls with a handle for another topic: 604; replicated: delay levels have handles ({_SENDS})"
    ),
    "route.CreateAndUpdateTopicIT": _STATIC,
    "statictopic.StaticTopicIT": _STATIC,
    "tls.TlsMix2IT": "also passed with brokers without TLS, so it shows little",
}
