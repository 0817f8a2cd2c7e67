"""Benchmarks of a local cluster of real processes, with yardsticks and peer systems in the same run."""

from dledger.infra.libraries import configure_libraries

configure_libraries()
