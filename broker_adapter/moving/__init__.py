"""Moving in: what a broker of RocketMQ has, put into a group of ours with equal queue offsets."""
