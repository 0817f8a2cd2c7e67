"""How many messages come and go: by topic and group, over the last minute, hour and day."""
