"""A strategy of your own: uniform deadlines, and the batch that each device is expected to finish.

adelfl compare --strategies adel,salf,examples.fitted_batch:FittedBatch
"""

import numpy as np

from adelfl.strategies import Orders, Progress, RoundStrategy
from adelfl.strategies.merge import layerwise
from adelfl.strategies.rounds import Floats, Ints


class FittedBatch(RoundStrategy):
    """S_u = P_u (T − B_u) / (E L): as many samples as the device backpropagates through all layers on average."""

    name = "fitted-batch"

    def orders(self, t: int, devices: Ints) -> Orders:
        """When the round closes, and what each of its devices is asked to do."""
        s = self.problem
        T = s.budget / s.rounds
        samples = s.compute[devices] * (T - s.upload[devices]) / (s.local_iterations * s.layers)
        batch = np.where(s.upload[devices] < T, np.maximum(1, np.floor(samples)), 0)
        return Orders(T, batch.astype(np.int64))

    def weights(self, t: int, progress: Progress) -> Floats:
        """How much each device's layer counts: here eq. (5) of the paper."""
        return layerwise(progress, correction="unbiased", average_over="contributors")
