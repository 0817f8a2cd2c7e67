"""What the client decides, and its bytes: values in, values out, nothing that waits."""
