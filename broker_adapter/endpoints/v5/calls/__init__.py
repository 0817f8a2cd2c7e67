"""The calls of MessagingService, implemented on the master."""
