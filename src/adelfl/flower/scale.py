"""Scale-out: the simulator's local work on Flower's simulation engine over Ray, on one machine or a cluster.

The virtual clock, the plan, the luck and the merge stay the simulator's; only what devices compute is done by virtual
clients, one message per device and round. So a run gives the same model as on one machine, up to rounding.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from adelfl.clock import RealClock
from adelfl.config.build import build_data, build_network
from adelfl.config.run import RunFile
from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.process import settle
from adelfl.records.schema import Row, RunResult
from adelfl.records.writer import Checkpoint, RunWriter
from adelfl.simulation import Experiment, check_start, simulate
from adelfl.training.engines import LocalWork
from adelfl.training.layers import Layer
from adelfl.training.loop import Local, Loop
from adelfl.training.work import RoundWork, Samples

_POLL = 0.01
_STATE = "state"

client_app = ClientApp()


@client_app.train()
def compute(message: Message, context: Context) -> Message:
    """A virtual client: one device's local work in one round."""
    said = message.content.config_records["config"]
    engine = _engine(str(said["run"]))
    sent = {name: _tensor(array) for name, array in message.content.array_records["arrays"].items()}
    buffers = {name: _tensor(array) for name, array in message.content.array_records[_STATE].items()}
    rows = np.split(np.array(said["rows"], dtype=np.int64), int(said["iterations"]))  # type: ignore[arg-type]
    masks = int(said["masks"]) if "masks" in said else None  # type: ignore[arg-type]
    done, rate, proximal = int(said["done"]), float(said["rate"]), float(said["proximal"])  # type: ignore[arg-type]
    update, loss = engine.train_one(sent, buffers, rows, done, rate, masks, proximal)
    content = RecordDict(
        {
            "arrays": _record(update),
            _STATE: _record(buffers),
            "metrics": MetricRecord({"loss": loss}),
        }
    )
    return Message(content, reply_to=message)


@lru_cache(maxsize=2)
def _engine(run: str) -> Loop:
    """Data and model of a run, once per process."""
    said = RunFile.model_validate_json(run)
    settle(said.engine.threads)
    dataset, _ = build_data(said)
    _, model, layers = build_network(said)
    samples = Samples.of(dataset.x_train, dataset.y_train)
    t = said.training
    return Loop(model.train(), layers, samples, t.weight_decay, t.momentum)


class OnFlower(Loop):
    """The loop engine, with devices that compute somewhere else."""

    name = "flower"

    def __init__(
        self,
        grid: Grid,
        run: str,
        model: nn.Module,
        layers: tuple[Layer, ...],
        samples: Samples,
        local: LocalWork,
    ) -> None:
        super().__init__(model, layers, samples, local.weight_decay, local.momentum)
        self.grid, self.run_file, self.clock = grid, run, RealClock()

    def locals(self, work: RoundWork) -> Iterator[Local]:
        """One message per device that contributes; results in the order of the devices."""
        nodes = sorted(self.grid.get_node_ids())
        weights = _record({name: p.detach() for name, p in self.parameters.items()})
        state = _record(self.buffers)
        starts, devices = work.starts, []
        messages: list[Message] = []
        for u in np.flatnonzero(work.contributes).tolist():
            rows = np.concatenate([r[starts[u] : starts[u + 1]] for r in work.rows])
            config = ConfigRecord(
                {
                    "run": self.run_file,
                    "rows": rows.tolist(),
                    "iterations": len(work.rows),
                    "done": int(work.progress.z[u]),
                    "rate": work.eta,
                    "proximal": work.proximal,
                }
            )
            if work.mask_seeds is not None:
                config["masks"] = int(work.mask_seeds[u])
            content = RecordDict({"arrays": weights, _STATE: state, "config": config})
            target = nodes[len(messages) % len(nodes)]
            messages.append(Message(content, dst_node_id=target, message_type=MessageType.TRAIN))
            devices.append(u)
        ids = list(self.grid.push_messages(messages))
        found: dict[str, Message] = {}
        while len(found) < len(ids):
            for reply in self.grid.pull_messages([i for i in ids if i not in found]):
                if reply.has_error():
                    raise AdelError(f"a virtual client failed: {reply.error.reason}")
                found[reply.metadata.reply_to_message_id] = reply
            self.clock.sleep_until(self.clock.now() + _POLL)
        for u, i in zip(devices, ids, strict=True):
            content = found[i].content
            arrays = {name: _tensor(array) for name, array in content.array_records["arrays"].items()}
            buffers = {name: _tensor(array) for name, array in content.array_records[_STATE].items()}
            yield Local(u, arrays, buffers, float(content.metric_records["metrics"]["loss"]))  # type: ignore[arg-type]


def check_start_on_flower(experiment: Experiment) -> None:
    """Raise what would stop a run before it begins."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "scale")
    if experiment.strategy.submodels:
        raise ConfigError("engine 'flower' trains whole models; HeteroFL's submodels need another engine")
    if experiment.strategy.control_variates:
        raise ConfigError(f"engine 'flower' keeps no control variates; {experiment.strategy.name} needs another engine")
    check_start(replace(experiment, engine="loop"))


def simulate_on_flower(
    said: RunFile,
    experiment: Experiment,
    writer: RunWriter | None = None,
    checkpoint: Checkpoint | None = None,
    report: Callable[[Row], None] | None = None,
) -> RunResult:
    """As :func:`adelfl.simulation.simulate`, with virtual clients.

    A Ray cluster is found by the variable ``RAY_ADDRESS``; otherwise Ray is started on this machine.
    """
    from flwr.simulation import run_simulation

    for key in ("RAY_USAGE_STATS_ENABLED", "FLWR_TELEMETRY_ENABLED"):
        os.environ.setdefault(key, "0")
    outcome: list[RunResult] = []
    trouble: list[BaseException] = []
    server = ServerApp()
    run = said.model_dump_json()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def engine(model: nn.Module, layers: tuple[Layer, ...], samples: Samples, local: LocalWork) -> OnFlower:
            return OnFlower(grid, run, model, layers, samples, local)

        try:
            outcome.append(simulate(replace(experiment, make_engine=engine), writer, checkpoint, report))
        except BaseException as error:
            trouble.append(error)
            raise

    problem = experiment.strategy.problem
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        run_simulation(
            server,
            client_app,
            num_supernodes=problem.cohort or problem.devices,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": _gpus(experiment.device)}},
        )
    except Exception as error:
        if not trouble:
            raise AdelError(f"Flower's simulation engine stopped: {error}") from error
    if trouble:
        raise trouble[0]
    return outcome[0]


def _gpus(device: str) -> float:
    return 0.25 if device.startswith("cuda") else 0.0


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.numpy().copy())


def _record(tensors: dict[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in tensors.items()})
