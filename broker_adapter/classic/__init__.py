"""The store directory of a broker of RocketMQ without DLedger: read, and the CommitLog written, too."""
