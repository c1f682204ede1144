"""A latency model of your own: phones that are in use in some rounds, and four times slower then.

adelfl compare --set fleet.latency=examples.my_latency:InUse
"""

import numpy as np

import adelfl as ad
from adelfl.latency import Exponential, Floats

SHARE, SLOWER = 0.3, 4.0


class InUse(Exponential):
    """P_u is the speed of a phone that lies on the table; in a share of rounds its owner plays."""

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int, layers: int) -> Floats:
        """The luck of the round first, then the paper's exponential layers."""
        slow = np.where(rng.random(mean.size) < SHARE, SLOWER, 1.0)
        return super().layer_times(rng, mean * slow, steps, layers)

    def delivery(self, mean: Floats, upload: Floats, deadline: Floats, layers: int) -> Floats:
        """A mixture of both kinds of round: all that a plan asks of a latency model."""
        idle, used = (super(InUse, self).delivery(mean * slow, upload, deadline, layers) for slow in (1.0, SLOWER))
        return (1.0 - SHARE) * idle + SHARE * used


def main() -> None:
    """Plan with it in Python, and run with it by its import path."""
    fleet = ad.Fleet.lognormal(30, compute=16.0, sigma=0.5, seed=0)
    for latency in (Exponential(), InUse()):
        solution = ad.plan(ad.Problem(fleet, layers=3, rounds=100, budget=60.0, latency=latency))
        print(f"{type(latency).__name__}: batches of {solution.schedule.batch_sizes(0).mean():.1f} at first")
    said = ad.load_run(None, ["fleet.latency=my_latency:InUse", "training.rounds=40"])
    print(f"adel ends at {ad.simulate(ad.build_experiment(said)).final_accuracy:.1%}")


if __name__ == "__main__":
    main()
