"""Migrate the data of a RocketMQ broker into a broker group, with equal queue offsets."""
