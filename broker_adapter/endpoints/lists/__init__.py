"""Lists of calls that arrive together, and the sends among them, which are stored together."""
