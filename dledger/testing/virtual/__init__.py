"""Environment of simulated nodes: time, event loops, disks, traces and violations."""
