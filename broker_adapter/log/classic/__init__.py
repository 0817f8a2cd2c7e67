"""Read and write the store directory of a RocketMQ broker without DLedger."""
