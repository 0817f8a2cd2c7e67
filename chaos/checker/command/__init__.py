"""What the command says and how it ends: output, signals, failures in words."""
