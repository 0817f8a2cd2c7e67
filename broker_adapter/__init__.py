"""A message broker in the style of RocketMQ whose CommitLog is the replicated log of `dledger`.

Only what `dledger` itself exports is used. `broker_adapter.client` is for programs that send and
receive,
`broker_adapter.server.program` for nodes; docs/broker.md says how it is built.
"""
