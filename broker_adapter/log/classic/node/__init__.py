"""A node with a classic CommitLog: appends, group commit, dispatch, manual roles, HA."""
