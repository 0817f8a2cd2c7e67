"""Access control: accounts from a file, signatures of calls, and a table of permissions."""
