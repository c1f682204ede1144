"""Federated methods in plain torch, one device after another, written from the papers and not from the library."""

from copy import deepcopy

import torch
from torch.nn import functional

from adelfl.simulation.draws import draw_rows


def device_update(model, layers, data, rows, z, eta, more=lambda name, w, start: 0.0):
    """w_u − w after plain SGD steps of which z layers are finished; ``more`` is added to gradients."""
    net, L = deepcopy(model), len(layers)
    weights = dict(net.named_parameters())
    start = {name: w.detach().clone() for name, w in weights.items()}
    for k, chosen in enumerate(rows):
        net.zero_grad()
        functional.cross_entropy(net(data[0][chosen]), data[1][chosen]).backward()
        for layer in layers[L - max(0, min(L, z - k * L)) :] if z > k * L else ():
            for name in layer.parameters:
                weights[name].data -= eta * (weights[name].grad + more(name, weights[name].detach(), start[name]))
    return {name: w.detach() - start[name] for name, w in weights.items()}


def plain_rounds(experiment, rows, of_round):
    """Go through recorded rounds; ``of_round(model, updates, row, train)`` returns the change of each parameter.

    ``train(u, more)`` gives the update of the u-th device of the round.
    """
    e, model = experiment, deepcopy(experiment.model)
    data = tuple(torch.from_numpy(v) for v in (e.dataset.x_train, e.dataset.y_train))
    steps, eta = e.strategy.problem.local_iterations, e.strategy.problem.eta
    for t, row in enumerate(rows):
        devices = list(range(len(row.depth))) if row.devices is None else row.devices
        (drawn,) = draw_rows(
            e.partition, e.seed, [(t, torch.tensor(devices).numpy(), torch.tensor(row.batch).numpy())], steps
        )
        starts = torch.tensor([0, *row.batch]).cumsum(0).tolist()

        def train(i, more=lambda name, w, start: 0.0):
            own = [torch.from_numpy(r[starts[i] : starts[i + 1]]) for r in drawn]  # noqa: B023
            return device_update(model, e.layers, data, own, row.depth[i], float(eta[t]), more)  # noqa: B023

        change = of_round(row, devices, train)
        with torch.no_grad():
            for name, w in model.named_parameters():
                w += change[name]
    return {name: w.detach().numpy() for name, w in model.named_parameters()}
