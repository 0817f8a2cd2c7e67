"""The cluster under test: real processes, their disks and clocks spoiled, their nodes traced."""
