"""A node whose log is a classic CommitLog: appends, group commit, dispatch, roles by hand, HA."""
