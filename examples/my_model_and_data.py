"""Train your own model on your own tensors within a time budget.

python examples/my_model_and_data.py
"""

import torch
from torch import Tensor, nn

import adelfl as ad
from adelfl.data import iid
from adelfl.strategies import find_strategy
from adelfl.training.layers import find_layers


def two_rings(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points near two circles; the label is 1 for the outer circle."""
    angle, outer = torch.rand(samples, generator=generator) * 6.283, torch.arange(samples) % 2
    radius = 1.0 + outer + 0.2 * torch.randn(samples, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), outer


def main() -> None:
    """Print the final accuracy of two methods."""
    torch.set_num_threads(1)  # faster for small models
    generator = torch.manual_seed(0)
    dataset = ad.Dataset.from_arrays(*two_rings(3000, generator), *two_rings(1000, generator), name="rings")
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    layers = find_layers(model, torch.from_numpy(dataset.x_train[:2]))
    fleet = ad.Fleet.lognormal(20, compute=16.0, sigma=0.5, seed=0)
    problem = ad.Problem(fleet, layers=len(layers), rounds=100, budget=60.0, learning_rate=0.3)
    partition = iid(dataset.y_train, fleet.size, seed=0)
    for method in ("adel", "drop"):
        strategy = find_strategy(method)(problem)
        result = ad.simulate(ad.Experiment(dataset, partition, model, layers, strategy, seed=0))
        print(f"{method}: {result.final_accuracy:.1%} after {result.time:.0f} virtual seconds")


if __name__ == "__main__":
    main()
