"""A deterministic simulator of whole clusters with brokers, on that of `dledger.testing`.

`run_seed` is a random run from one seed: brokers made of the real parts, producers, consumer groups and an
administrator, all faults of the log's simulator, and all checks. `BrokerSimulation` is the same cluster,
driven by hand.
"""

from tests.broker_adapter.simulator.run import RunResult, broker_profile, run_seed
from tests.broker_adapter.simulator.simulation import BrokerSimulation

__all__ = ["BrokerSimulation", "RunResult", "broker_profile", "run_seed"]
