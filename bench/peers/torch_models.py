"""A workload's model, data and first weights as torch objects."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from workloads import Conv, Dense, Flatten, Floats, Pool, Relu, Step, Workload, first_weights, samples


def _module(step: Step) -> nn.Module:
    match step:
        case Dense():
            return nn.Linear(step.inputs, step.outputs)
        case Conv():
            return nn.Conv2d(step.inputs, step.outputs, step.size, padding=step.padding)
        case Relu():
            return nn.ReLU()
        case Pool():
            return nn.MaxPool2d(2)
        case Flatten():
            return nn.Flatten()


def model(workload: Workload, variant: str = "") -> nn.Sequential:
    """Build the network and give it the first weights; ``channels_last`` is a layout that suits oneDNN's kernels."""
    built = nn.Sequential(*(_module(step) for step in workload.model))
    with torch.no_grad():
        for parameter, value in zip(built.parameters(), first_weights(workload), strict=True):
            parameter.copy_(torch.from_numpy(value))
    if variant == "float64":
        return built.double()
    return built.to(memory_format=torch.channels_last) if variant.startswith("channels_last") else built


def data(workload: Workload) -> tuple[Tensor, Tensor]:
    """Return images (devices, samples, *shape) and labels (devices, samples)."""
    x, y = samples(workload)
    return torch.from_numpy(x), torch.from_numpy(y)


def arrays(parameters: list[Tensor]) -> list[Floats]:
    """Return the parameters as NumPy arrays."""
    return [p.detach().numpy().copy() for p in parameters]
