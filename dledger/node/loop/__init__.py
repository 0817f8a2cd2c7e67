"""The event loop of a node: its ticks, its clock, its threads, and the watchdog over it."""
