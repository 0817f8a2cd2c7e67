"""A message broker in the style of RocketMQ whose CommitLog is the replicated log of `dledger`.

What is here so far: byte layouts and errors, pure. Only what `dledger` itself exports is used.
"""
