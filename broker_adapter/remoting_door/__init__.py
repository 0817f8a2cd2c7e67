"""How requests of the remoting protocol come into a node, and which of them it answers itself."""
