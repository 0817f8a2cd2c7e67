"""Messages in no queue yet, on the master: taken in, moved when they are due, carried along the log."""
