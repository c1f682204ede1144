"""A custom strategy: uniform deadlines, and the batch size that each device is expected to finish.

adelfl compare --strategies adel,salf,examples.fitted_batch:FittedBatch
"""

import numpy as np

from adelfl.strategies import Orders, Progress, RoundStrategy
from adelfl.strategies.merge import layerwise
from adelfl.strategies.rounds import Floats, Ints


class FittedBatch(RoundStrategy):
    """Use S_u = P_u (T − B_u) / (E L) samples, which device u backpropagates through all layers on average."""

    name = "fitted-batch"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return the deadline of round t and the batch size of each device."""
        p = self.problem
        T = p.budget / p.rounds
        samples = p.compute[devices] * (T - p.upload[devices]) / (p.local_iterations * p.layers)
        batch = np.where(p.upload[devices] < T, np.maximum(1, np.floor(samples)), 0)
        return Orders(T, batch.astype(np.int64))

    def weights(self, t: int, progress: Progress) -> Floats:
        """Return the weight of each delivered layer, eq. (5) of the paper."""
        return layerwise(progress, correction="unbiased", average_over="contributors")
