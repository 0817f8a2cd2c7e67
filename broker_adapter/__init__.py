"""A message broker in the style of RocketMQ whose CommitLog is the replicated log of `dledger`.

The package uses only public names of `dledger`. `broker_adapter.client` is for programs that send and
receive, `broker_adapter.server.program` for nodes. docs/broker.md describes the design.
"""
