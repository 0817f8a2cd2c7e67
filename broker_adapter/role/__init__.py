"""Makes the broker's role follow the node's role: RoleChangeHandler, its protocols and its status."""
