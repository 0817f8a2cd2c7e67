"""Names of the properties that contain the data of RocketMQ 5 messages in addition to the body.

They are RocketMQ's names, so that its tools can read the properties.
"""

from __future__ import annotations

SHARDING_KEY = "__SHARDINGKEY"
DELIVER_AT_MS = "TIMER_DELIVER_MS"
TRANSACTION_PREPARED = "TRAN_MSG"
TRANSACTION_ID = "__transactionId__"
#: Delay in seconds before the first transaction check.
CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PRIORITY = "_SYS_MSG_PRIORITY_"
TRACE_CONTEXT = "TRACE_CONTEXT"
BORN_HOST = "__BORNHOST"
DEAD_LETTER_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

#: System properties that consumers receive among the user properties. A producer may send them when it
#: forwards a received message. They are then dropped.
SHOWN = frozenset({SHARDING_KEY, TRANSACTION_ID})

#: Names reserved for the system.
RESERVED = frozenset(
    {
        "TRACE_ON",
        "MSG_REGION",
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "UNIQ_KEY",
        "EXTEND_UNIQ_INFO",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "DUP_INFO",
        "CLUSTER",
        "MSG_TYPE",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "INSTANCE_ID",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "TIMER_DELAY_LEVEL",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_MS",
        "__STARTDELIVERTIME",
        "CRC32",
        "TRACE_CONTEXT",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "_SYS_MSG_PRIORITY_",
        "__LITE_TOPIC",
    }
)
