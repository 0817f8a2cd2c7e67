"""Send the same requests to our brokers and to RocketMQ 5.5, and compare what they answer and store.

`generator` makes a sequence of steps from a seed, `session` plays it on one broker and records observations,
`compare` finds the differences to RocketMQ, `accepted` lists those that are intended, and `shrink` reduces a
failing sequence. `python -m tests.interop.differential --help` runs it outside of pytest.
"""
