"""Benchmarks of a cluster of real processes on this machine, with yardsticks and peers in the same run."""

from dledger.node.setup.libraries import configure_libraries

configure_libraries()
