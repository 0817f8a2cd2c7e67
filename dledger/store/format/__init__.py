"""The bytes of entries and of the files that hold them. Pure."""
