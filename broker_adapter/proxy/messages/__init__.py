"""What is in the calls: messages, names, filter expressions, errors; in and out."""
