"""The broker's role follows the node's: RoleChangeHandler, what it drives, what it shows."""
