"""The protocol by which a master ships its CommitLog to slaves, as RocketMQ does (HAService, HAClient)."""
