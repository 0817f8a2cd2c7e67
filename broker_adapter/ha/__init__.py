"""The protocol by which a master of RocketMQ ships its CommitLog to slaves (HAService): the slave's side."""
