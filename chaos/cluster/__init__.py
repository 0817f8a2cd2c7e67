"""The cluster under test: real processes, with faults in their disks and clocks, their nodes traced."""
