"""The protocol by which a master of RocketMQ ships its CommitLog to slaves (HAService), from the slave's side."""
