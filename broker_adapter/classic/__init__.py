"""The store directory of a broker of RocketMQ without DLedger, as it is on disk. Nothing is written there."""
