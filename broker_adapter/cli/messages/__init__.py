"""Commands that send, receive and look up messages."""
