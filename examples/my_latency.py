"""A custom latency model: phones that are four times slower in rounds in which they are in use.

adelfl compare --set fleet.latency=examples.my_latency:InUse
"""

import numpy as np

import adelfl as ad
from adelfl.latency import Exponential, Floats

SHARE, SLOWER = 0.3, 4.0


class InUse(Exponential):
    """Phones with speed P_u when idle that are in use in a share of the rounds."""

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """Draw which phones are in use, then the exponential layer times of the paper."""
        slow = np.where(rng.random(mean.size) < SHARE, SLOWER, 1.0)
        return super().layer_times(rng, mean * slow, steps, layers)

    def delivery(self, mean: Floats, upload: Floats, deadline: Floats, layers: int) -> Floats:
        """Return the delivery probabilities, a mixture of both kinds of round; plans use only this method."""
        idle, used = (super(InUse, self).delivery(mean * slow, upload, deadline, layers) for slow in (1.0, SLOWER))
        return (1.0 - SHARE) * idle + SHARE * used


def main() -> None:
    """Plan with the model in Python, then simulate with it by import path."""
    fleet = ad.Fleet.lognormal(30, compute=16.0, sigma=0.5, seed=0)
    for latency in (Exponential(), InUse()):
        solution = ad.plan(ad.Problem(fleet, layers=3, rounds=100, budget=60.0, latency=latency))
        print(f"{type(latency).__name__}: mean first batch size {solution.schedule.batch_sizes(0).mean():.1f}")
    config = ad.load_run(None, ["fleet.latency=my_latency:InUse", "training.rounds=40"])
    print(f"adel ends at {ad.simulate(ad.build_experiment(config)).final_accuracy:.1%}")


if __name__ == "__main__":
    main()
