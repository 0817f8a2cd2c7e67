"""The calls of MessagingService, as the master answers them."""
