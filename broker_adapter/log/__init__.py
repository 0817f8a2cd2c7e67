"""The CommitLog as all that is above it sees it: the protocols, and the replicated log as one of them."""
