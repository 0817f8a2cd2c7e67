"""What the simulator knows beside the nodes: what disks were told, what clients heard, what the log says."""
