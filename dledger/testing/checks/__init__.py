"""Models of disks, clients and the committed log, which the simulator maintains independently of the
nodes."""
