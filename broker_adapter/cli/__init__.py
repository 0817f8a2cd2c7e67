"""Commands of the broker and the NameServer."""
