"""The broker of one node: how its parts are assembled, and its status."""
