"""How requests of the remoting protocol come into a node: who may ask, what it answers itself, what goes on to the master."""
