"""What simulated nodes run on: time, event loops, disks, the trace of a run, the alarm."""
