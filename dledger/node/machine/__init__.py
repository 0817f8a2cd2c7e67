"""The program's state machine on a node: fed with committed entries, saved, loaded."""
