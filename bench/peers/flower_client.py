"""Flower's client: one step from the weights in the message, with model and data cached in the worker process.

This is a separate module so that Ray sends it by name and every worker imports it once. As part of the main script, it
would be pickled by value with each message, and its caches would always be empty.
"""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
import torch
import torch_models
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from workloads import WORKLOADS, Workload, for_check

app = ClientApp()


@lru_cache(maxsize=1)
def _cached() -> tuple[Workload, nn.Sequential, Tensor, Tensor, Tensor | None]:
    """Set this worker up on its first message; the folder and the workload come from the main script."""
    torch.set_num_threads(1)
    workload = WORKLOADS[os.environ["BENCH_WORKLOAD"]]
    folder = os.environ["BENCH_FOLDER"]
    # Mapped copy-on-write: workers share the pages, and torch does not complain about read-only memory.
    x, y = (torch.from_numpy(np.load(f"{folder}/{name}.npy", mmap_mode="c")) for name in ("x", "y"))
    model = torch_models.model(workload, os.environ["BENCH_VARIANT"])
    if "BENCH_CHECK" not in os.environ:
        return workload, model, x, y, None
    return for_check(workload), model, x, y, torch.from_numpy(np.load(f"{folder}/rows.npy"))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take one SGD step on one device."""
    workload, model, xs, ys, fixed = _cached()
    device = int(context.node_config["partition-id"])
    parameters = list(model.parameters())
    with torch.no_grad():
        received = message.content.array_records["arrays"].to_numpy_ndarrays()
        torch._foreach_copy_(parameters, [torch.from_numpy(a) for a in received])
    rows = torch.randint(workload.samples, (workload.batch,)) if fixed is None else fixed[device]
    x, y = xs[device].index_select(0, rows), ys[device].index_select(0, rows)
    gradients = torch.autograd.grad(cross_entropy(model(x), y), parameters)
    with torch.no_grad():
        torch._foreach_add_(parameters, gradients, alpha=-workload.rate)
    content = RecordDict(
        {
            "arrays": ArrayRecord([p.detach().numpy() for p in parameters]),
            "metrics": MetricRecord({"num-examples": workload.batch}),
        }
    )
    return Message(content=content, reply_to=message)
