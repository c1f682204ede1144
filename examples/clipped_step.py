"""A custom server step: limit the norm of the merged change before it moves the weights.

python examples/clipped_step.py
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

import adelfl as ad
from adelfl.runtime.server_step import Array, ServerStep, State


@dataclass(frozen=True)
class Clipped(ServerStep):
    """Scale a merged change down to ``limit`` times the mean norm of the changes so far."""

    limit: float = 2.0

    def apply(self, weights: Mapping[str, Array], change: Mapping[str, Array], state: State) -> None:
        """Move the weights in place; what the step remembers is in ``state``, so that it survives a crash."""
        norm = math.sqrt(sum(float((delta * delta).sum()) for delta in change.values()))
        mean = float(state.get("mean_norm", norm))
        factor = min(1.0, self.limit * mean / max(norm, 1e-12))
        state["mean_norm"] = np.float64(0.9 * mean + 0.1 * factor * norm)
        super().apply(weights, {name: factor * delta for name, delta in change.items()}, state)


def main() -> None:
    """Compare the step with the plain one, at a large learning rate."""
    changes = ["training.rounds=60", "training.depth=0.5", "learning_rate.initial=0.6", "strategy.name=salf"]
    plain = ad.build_experiment(ad.load_run(None, changes))
    for step in (ServerStep(), Clipped()):
        result = ad.simulate(replace(plain, server_step=step))
        print(f"{type(step).__name__}: {result.final_accuracy:.1%} final accuracy")


if __name__ == "__main__":
    main()
