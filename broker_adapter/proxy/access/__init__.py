"""Who may call, and what for: accounts in a file, signatures of calls, a table of permissions."""
